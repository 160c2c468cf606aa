"""From episodes to numbers. Names never change; turns count from 1, agents from 0."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence

from marl_ray.core.messages import Episode, TurnNode, UpdateStats
from marl_ray.credit.returns import expected_returns

Row = dict[str, float | int | str]


def joint_samples(episodes: Sequence[Episode]) -> int:
    """The unit of env_steps: executed joint actions."""
    return sum(len(node.joint_actions) for episode in episodes for node in episode.nodes)


def episode_metrics(episodes: Sequence[Episode], discount: float, num_turns: int) -> Row:
    """Means over episodes, for each turn: rewards, expected returns, and the environment's code metrics.

    An episode that was good enough to end early counts in the turns it did not play with its last node, so that
    a turn's numbers speak of all tasks, not of the unsolved ones. `ended_early` is the share of such episodes.
    """
    by_turn: dict[int, list[TurnNode]] = defaultdict(list)
    returns: dict[int, list[float]] = defaultdict(list)
    for episode in episodes:
        means = [statistics.fmean(a.reward for a in node.joint_actions) for node in episode.nodes]
        played = list(zip(episode.nodes, expected_returns(means, discount), strict=True))
        if episode.stopped == "early_termination":
            played += played[-1:] * (num_turns - len(played))
        for turn, (node, value) in enumerate(played):
            by_turn[turn].append(node)
            returns[turn].append(value)
    row: Row = {}
    for turn, nodes in sorted(by_turn.items()):
        name = f"turn_{turn + 1}"
        groups = [[a.reward for a in node.joint_actions] for node in nodes]
        rewards = [r for group in groups for r in group]
        row[f"{name}/reward_mean"] = statistics.fmean(rewards)
        row[f"{name}/reward_std"] = statistics.pstdev(rewards)
        row[f"{name}/reward_max_mean"] = statistics.fmean(max(group) for group in groups)
        row[f"{name}/group_std_mean"] = statistics.fmean(statistics.pstdev(group) for group in groups)
        row[f"{name}/expected_return"] = statistics.fmean(returns[turn])
        if turn:
            row[f"{name}/ended_early"] = statistics.fmean(node.turn < turn for node in nodes)
        assessments = [a.assessment for node in nodes for a in node.joint_actions]
        for key in assessments[0].metrics:
            row[f"{name}/{key}"] = statistics.fmean(a.metrics[key] for a in assessments)
        for key in assessments[0].levels:
            row[f"{name}/level/{key}"] = statistics.fmean(a.levels[key] for a in assessments)
    return row | transition_metrics(episodes)


def transition_metrics(episodes: Sequence[Episode]) -> Row:
    """Means over the transitions from one turn to the next, as expert/failures: the share of requests that ended
    without an edit."""
    values: dict[str, list[float]] = defaultdict(list)
    for episode in episodes:
        for node in episode.nodes:
            for key, value in node.transition.items():
                values[key].append(value)
    return {key: statistics.fmean(found) for key, found in sorted(values.items())}


def rollout_metrics(episodes: Sequence[Episode], seconds: float) -> Row:
    """Tokens, lengths and what was left out."""
    completions = [c for e in episodes for node in e.nodes for group in node.completions for c in group]
    tokens = sum(len(c.token_ids) for c in completions)
    row: Row = {
        "rollout/episodes": len(episodes),
        "rollout/joint_samples": joint_samples(episodes),
        "rollout/tokens": tokens,
        "rollout/tokens_per_s": tokens / seconds if seconds else 0.0,
        "rollout/completion_tokens_mean": tokens / len(completions) if completions else 0.0,
        "rollout/truncated_rate": (
            sum(c.finish_reason == "length" for c in completions) / len(completions) if completions else 0.0
        ),
        "rollout/too_long_prompts": sum(e.stopped == "prompt_too_long" for e in episodes),
        "rollout/early_terminations": sum(e.stopped == "early_termination" for e in episodes),
        "sandbox/infra_errors": sum(e.stopped == "infra_error" for e in episodes),
    }
    reports = [a.report for e in episodes for node in e.nodes for a in node.joint_actions]
    row["sandbox/untrusted"] = sum(not r.trusted for r in reports)
    row["sandbox/timeouts"] = sum(any(t.status == "timeout" for t in r.tests) for r in reports)
    return row


def update_metrics(agent: int, stats: UpdateStats, version: int) -> Row:
    """One agent's part of a step's row; without a gradient there is no logprob_gap."""
    name = f"agent_{agent}"
    row: Row = {
        f"{name}/loss": stats.loss,
        f"{name}/grad_norm": stats.grad_norm,
        f"{name}/learning_rate": stats.learning_rate,
        f"{name}/optimizer_steps": stats.optimizer_steps,
        f"{name}/skipped_steps": stats.skipped_steps,
        f"{name}/weight_version": version,
    }
    if stats.logprob_gap is not None:
        row[f"{name}/logprob_gap"] = stats.logprob_gap
    return row
