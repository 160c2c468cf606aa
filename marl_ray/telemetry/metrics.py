"""Metric rows. docs/reference/metrics.md lists metrics and keys; metric names never change.

In names turns count from 1 and agents from 0. Turn metrics are means over all nodes of that turn in all episodes. A
branch that ended early counts in later turns with its last node, as often as it would have had nodes there, so that
turn metrics cover all tasks and not only the unsolved ones; `ended_early` is the share of such nodes. A branch that
ended because its last joint action solved the task counts with this joint action alone.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from marl_ray.config import AlgorithmConfig, ExternalConfig
from marl_ray.cooperation.revisions import revision_metrics
from marl_ray.core.batch import Batch, UpdateStats
from marl_ray.core.episode import Episode, JointAction, Node
from marl_ray.core.ids import PolicyId
from marl_ray.core.state import TrainerState
from marl_ray.credit.returns import expected_return
from marl_ray.weights.receiver import WeightSyncResult

MetricRow = dict[str, float | int | str]


def rollout_row(
    training: AlgorithmConfig,
    external: ExternalConfig,
    episodes: Sequence[Episode],
    batches: Sequence[Batch],
    seconds: float,
    executions: int,
) -> MetricRow:
    """Return the metrics of a rollout of `seconds` with one batch per agent and `executions` sandboxed programs."""
    row = episode_metrics(episodes, training.discount, training.num_turns, training.handoff == "all")
    for agent, batch in enumerate(batches):
        row |= staleness_metrics(agent, batch)
    row |= rollout_metrics(episodes, seconds)
    if external.stop != "never":
        row["rollout/solved"] = count_stops(episodes, "solved")
    row["sandbox/executions"] = executions
    row["sandbox/executions_per_s"] = executions / seconds if seconds else 0.0
    row["time/rollout"] = seconds
    return row


def step_row(
    state: TrainerState,
    rollout: MetricRow,
    updates: Mapping[PolicyId, UpdateStats],
    syncs: Mapping[PolicyId, WeightSyncResult],
    times: MetricRow,
) -> MetricRow:
    """Return the row of a complete training step: `rollout` (see `rollout_row`), the update and weight synchronisation
    of each policy, and the `times` of `Timeline`. `state` is the state after the step."""
    row: MetricRow = {"step": state.step, "env_steps": state.env_steps, **rollout}
    for policy, stats in updates.items():
        row |= update_metrics(policy, stats, state.step)
        if policy in syncs:
            sync = syncs[policy]
            row[f"{policy.key}/sent_bytes"] = sync.sent_bytes
            if sync.changed is not None:
                row[f"{policy.key}/changed_share"] = sync.changed
    return row | times


def evaluation_row(
    training: AlgorithmConfig,
    external: ExternalConfig,
    state: TrainerState,
    episodes: Sequence[Episode],
    seconds: Mapping[str, float],
    measures: Mapping[str, float] = MappingProxyType({}),
) -> MetricRow:
    """Return the row of an evaluation at `state`; `seconds["eval"]` is its duration, `measures` are its measures of
    cooperation."""
    metrics = episode_metrics(episodes, training.discount, training.num_turns, training.eval_handoff == "all")
    row: MetricRow = {"step": state.step, "env_steps": state.env_steps}
    row |= _under("eval", {**metrics, **measures})
    row["eval/episodes"] = len(episodes)
    if external.stop != "never":
        row["eval/solved"] = count_stops(episodes, "solved")
    row["eval/too_long_prompts"] = count_stops(episodes, "prompt_too_long")
    row["eval/infra_errors"] = count_stops(episodes, "infra_error")
    row["eval/unscored"] = count_unscored(episodes)
    row["time/eval"] = seconds["eval"]
    return row


def joint_samples(episodes: Sequence[Episode]) -> int:
    """Return the number of sampled joint actions in all nodes, greedy ones included: the unit of `env_steps`."""
    samples = 0
    for node in _nodes(episodes):
        samples += len(node.joint_actions) + (node.greedy is not None)
    return samples


def count_stops(episodes: Sequence[Episode], reason: str) -> int:
    """Return the number of branches that ended for `reason`; a chain has at most one."""
    count = 0
    for episode in episodes:
        for stop in episode.stops:
            count += stop.reason == reason
    return count


def count_unscored(episodes: Sequence[Episode]) -> int:
    """Return the number of joint actions to which the environment gave no reward."""
    return sum(len(episode.unscored) for episode in episodes)


def episode_metrics(episodes: Sequence[Episode], discount: float, num_turns: int, whole: bool = False) -> MetricRow:
    """Return the rewards, expected returns, environment metrics and levels of each turn, then the means of the
    transitions' metrics (`expert/failures`). `whole` means that every joint action is expanded (handoff `all`)."""
    row: MetricRow = {}
    for turn, nodes in sorted(nodes_by_turn(episodes, num_turns, whole).items()):
        name = f"turn_{turn + 1}"
        actions: list[JointAction] = []
        rewards: list[float] = []
        largest = []
        deviations = []
        returns = []
        for node in nodes:
            actions += node.joint_actions
            group = [action.reward for action in node.joint_actions]
            rewards += group
            largest.append(max(group))
            deviations.append(statistics.pstdev(group))
            returns.append(expected_return(node, discount))
        row[f"{name}/reward_mean"] = statistics.fmean(rewards)
        row[f"{name}/reward_std"] = statistics.pstdev(rewards)
        row[f"{name}/reward_max_mean"] = statistics.fmean(largest)
        row[f"{name}/group_std_mean"] = statistics.fmean(deviations)
        row[f"{name}/expected_return"] = statistics.fmean(returns)
        if turn:
            row[f"{name}/ended_early"] = statistics.fmean(node.turn < turn for node in nodes)
        row |= _under(name, _means(action.outcome.metrics for action in actions))
        row |= _under(f"{name}/level", _means(action.outcome.levels for action in actions))
        latency = statistics.fmean(action.latency for action in actions)
        if latency:
            row[f"{name}/latency"] = -latency
        row |= _agent_rewards(name, actions)
        row |= _baseline_rewards(name, nodes)
    row |= revision_metrics(episodes, num_turns)
    transitions: list[Mapping[str, float]] = []
    for node in _nodes(episodes):
        for _, metrics in sorted(node.transitions.items()):
            transitions.append(metrics)
    return row | dict(sorted(_means(transitions).items()))


def _under(prefix: str, metrics: Mapping[str, Any]) -> MetricRow:
    return {f"{prefix}/{name}": value for name, value in metrics.items()}


def nodes_by_turn(episodes: Sequence[Episode], num_turns: int, whole: bool) -> dict[int, list[Node]]:
    """Return the nodes that count in each turn (from 0): its own, and the last nodes of branches that ended early."""
    by_turn: dict[int, list[Node]] = defaultdict(list)
    sizes = {node.turn: len(node.joint_actions) for node in _nodes(episodes)}
    for episode in episodes:
        early = {stop.path for stop in episode.stops if stop.reason == "early_termination"}
        for path, node in episode.nodes():
            by_turn[node.turn].append(node)
            if path not in early and not node.stopped:
                continue  # its branches are in later turns with nodes of their own
            group_size = len(node.joint_actions)
            # Nodes of the next turn below this node, and below one of its joint actions, had it not ended.
            copies = group_size if whole else 1
            copies_per_action = 1
            for turn in range(node.turn + 1, num_turns):
                if path in early:
                    by_turn[turn] += [node] * copies
                size = sizes.get(turn, group_size)
                for index in sorted(node.stopped):
                    solved = _repeated(node, index, size, num_turns - turn - 1)
                    by_turn[turn] += [solved] * copies_per_action
                if whole:
                    copies *= size
                    copies_per_action *= size
    return by_turn


def _repeated(node: Node, index: int, size: int, turns_left: int) -> Node:
    """Return the node of a later turn that stands for joint action `index`, which solved the task: as many joint
    actions as other nodes of that turn have, all equal to this one."""
    actions = [node.joint_actions[index]] * size
    stopped = {0: turns_left} if turns_left else {}
    return replace(node, joint_actions=actions, children={}, stopped=stopped, greedy=None, counterfactuals={})


def rollout_metrics(episodes: Sequence[Episode], seconds: float) -> MetricRow:
    """Return token counts, lengths, early ends, and the sums of the outcomes' counts."""
    completions = 0
    tokens = 0
    truncated = 0
    for node in _nodes(episodes):
        for group in node.every_completion:
            completions += len(group)
            for completion in group:
                tokens += len(completion.token_ids)
                truncated += completion.finish_reason == "length"
    row: MetricRow = {
        "rollout/episodes": len(episodes),
        "rollout/joint_samples": joint_samples(episodes),
        "rollout/tokens": tokens,
        "rollout/tokens_per_s": tokens / seconds if seconds else 0.0,
        "rollout/completion_tokens_mean": tokens / completions if completions else 0.0,
        "rollout/truncated_rate": truncated / completions if completions else 0.0,
        "rollout/too_long_prompts": count_stops(episodes, "prompt_too_long"),
        "rollout/control_tokens": sum(episode.control_tokens for episode in episodes),
        "rollout/unscored": count_unscored(episodes),
        "rollout/early_terminations": count_stops(episodes, "early_termination"),
        "sandbox/infra_errors": count_stops(episodes, "infra_error"),
    }
    counts: dict[str, int] = {"sandbox/untrusted": 0, "sandbox/timeouts": 0}  # in every row
    for node in _nodes(episodes):
        for action in node.joint_actions:
            for key, count in action.outcome.counts.items():
                counts[key] = counts.get(key, 0) + count
    return row | counts


def update_metrics(policy: PolicyId, stats: UpdateStats, version: int) -> MetricRow:
    """Return the metrics of one policy's update; statistics that were not computed are left out."""
    # The order is the order of the columns in metrics.jsonl.
    values = {
        "loss": stats.loss,
        "grad_norm": stats.grad_norm,
        "learning_rate": stats.learning_rate,
        "optimizer_steps": stats.optimizer_steps,
        "skipped_steps": stats.skipped_steps,
        "weight_version": version,
        "logprob_gap": stats.logprob_gap,
    }
    ratios = stats.importance_ratios
    if ratios is not None:
        values["ratio_mean"] = ratios.mean
        values["ratio_max"] = ratios.max
        values["ratio_cut"] = ratios.cut
        values["effective_sample_size"] = ratios.effective_sample_size
    values["entropy"] = stats.entropy
    clipping = stats.clipping
    if clipping is not None:
        values["clip_fraction"] = clipping.clip_fraction
        values["policy_ratio_mean"] = clipping.ratio_mean
        values["policy_ratio_max"] = clipping.ratio_max
        values["policy_kl"] = clipping.kl
    values["reference_kl"] = stats.reference_kl
    critic = stats.critic
    if critic is not None:
        values["critic_loss"] = critic.loss
        values["value_mean"] = critic.value
        values["explained_variance"] = critic.explained_variance
    return {f"{policy.key}/{name}": value for name, value in values.items() if value is not None}


def staleness_metrics(agent: int, batch: Batch) -> MetricRow:
    """Return the mean (over tokens) and maximum number of versions that the sampling weights were behind the batch's
    version; nothing for a batch without tokens."""
    tokens = 0
    total = 0
    versions = set()
    for mini_batch in batch.mini_batches:
        for group in mini_batch.groups:
            for completion in group.completions:
                # A completion has several spans if the weights changed while it was sampled.
                for version, span_tokens in completion.spans:
                    tokens += span_tokens
                    total += (batch.step - version) * span_tokens
                    versions.add(version)
    if not tokens:
        return {}
    return {
        f"agent_{agent}/staleness_mean": total / tokens,
        f"agent_{agent}/staleness_max": batch.step - min(versions),
    }


def _agent_rewards(turn: str, actions: Sequence[JointAction]) -> MetricRow:
    """Return each agent's mean reward if the environment gives each agent a reward of its own."""
    if not any(action.outcome.rewards for action in actions):
        return {}
    row: MetricRow = {}
    by_agent = zip(*(action.rewards for action in actions), strict=True)
    for agent, rewards in enumerate(by_agent):
        row[f"agent_{agent}/{turn}/reward_mean"] = statistics.fmean(rewards)
    return row


def _baseline_rewards(turn: str, nodes: Sequence[Node]) -> MetricRow:
    """Return the mean reward of greedy joint samples, and per agent with counterfactuals the mean difference between
    its reward and its counterfactual reward."""
    row: MetricRow = {}
    greedy = [node.greedy.reward for node in nodes if node.greedy is not None]
    if greedy:
        row[f"{turn}/greedy_reward_mean"] = statistics.fmean(greedy)
    differences: dict[int, list[float]] = defaultdict(list)
    for node in nodes:
        for agent, counterfactuals in node.counterfactuals.items():
            for action, counterfactual in zip(node.joint_actions, counterfactuals, strict=False):
                differences[agent].append(action.rewards[agent] - counterfactual)
    for agent in sorted(differences):
        row[f"agent_{agent}/{turn}/difference_mean"] = statistics.fmean(differences[agent])
    return row


def _means(mappings: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean of each key over the mappings that have it, in order of first appearance."""
    values: dict[str, list[float]] = {}
    for mapping in mappings:
        for key, value in mapping.items():
            values.setdefault(key, []).append(value)
    return {key: statistics.fmean(numbers) for key, numbers in values.items()}


def _nodes(episodes: Sequence[Episode]) -> list[Node]:
    nodes: list[Node] = []
    for episode in episodes:
        for _, node in episode.nodes():
            nodes.append(node)
    return nodes
