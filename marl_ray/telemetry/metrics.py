"""Metric rows and episode records. docs/reference/metrics.md lists metrics and keys; metric names never change.

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

from marl_ray.config import Config
from marl_ray.core.batch import Batch, UpdateStats
from marl_ray.core.chat import Prompt
from marl_ray.core.episode import Episode, JointAction, Node
from marl_ray.core.ids import PolicyId
from marl_ray.core.state import TrainerState
from marl_ray.credit.returns import kept_return
from marl_ray.telemetry.revisions import revision_metrics
from marl_ray.weights.receiver import WeightSyncResult

MetricRow = dict[str, float | int | str]
EpisodeRecord = dict[str, Any]


def rollout_row(
    config: Config, episodes: Sequence[Episode], batches: Sequence[Batch], seconds: float, executions: int
) -> MetricRow:
    """Return the metrics of a rollout of `seconds` with one batch per agent and `executions` sandboxed programs."""
    row = episode_metrics(episodes, config.credit.discount, config.rollout.num_turns, config.rollout.handoff == "all")
    for agent, batch in enumerate(batches):
        row |= staleness_metrics(agent, batch)
    row |= rollout_metrics(episodes, seconds)
    if config.external.stop != "never":
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
            row[f"{policy.key}/sent_bytes"] = syncs[policy].sent_bytes
            if (changed := syncs[policy].changed) is not None:
                row[f"{policy.key}/changed_share"] = changed
    return row | times


def evaluation_row(
    config: Config,
    state: TrainerState,
    episodes: Sequence[Episode],
    seconds: Mapping[str, float],
    measures: Mapping[str, float] = MappingProxyType({}),
) -> MetricRow:
    """Return the row of an evaluation at `state`; `seconds["eval"]` is its duration, `measures` are its measures of
    cooperation."""
    rollout = config.rollout
    metrics = episode_metrics(episodes, config.credit.discount, rollout.num_turns, rollout.handoff == "all")
    row: MetricRow = {"step": state.step, "env_steps": state.env_steps}
    row |= {f"eval/{name}": value for name, value in {**metrics, **measures}.items()}
    row["eval/episodes"] = len(episodes)
    if config.external.stop != "never":
        row["eval/solved"] = count_stops(episodes, "solved")
    row["eval/too_long_prompts"] = count_stops(episodes, "prompt_too_long")
    row["eval/infra_errors"] = count_stops(episodes, "infra_error")
    row["eval/unscored"] = sum(len(episode.unscored) for episode in episodes)
    row["time/eval"] = seconds["eval"]
    return row


def joint_samples(episodes: Sequence[Episode]) -> int:
    """Return the number of sampled joint actions in all nodes, greedy ones included: the unit of `env_steps`."""
    return sum(len(node.joint_actions) + (node.greedy is not None) for node in _nodes(episodes))


def count_stops(episodes: Sequence[Episode], reason: str) -> int:
    """Return the number of branches that ended for `reason`; a chain has at most one."""
    return sum(stop.reason == reason for episode in episodes for stop in episode.stops)


def episode_metrics(episodes: Sequence[Episode], discount: float, num_turns: int, whole: bool = False) -> MetricRow:
    """Return the rewards, expected returns, environment metrics and levels of each turn, then the means of the
    transitions' metrics (`expert/failures`). `whole` means that every joint action is expanded (handoff `all`)."""
    row: MetricRow = {}
    for turn, nodes in sorted(nodes_by_turn(episodes, num_turns, whole).items()):
        name = f"turn_{turn + 1}"
        groups = [[a.reward for a in node.joint_actions] for node in nodes]
        rewards = [reward for group in groups for reward in group]
        row[f"{name}/reward_mean"] = statistics.fmean(rewards)
        row[f"{name}/reward_std"] = statistics.pstdev(rewards)
        row[f"{name}/reward_max_mean"] = statistics.fmean(max(group) for group in groups)
        row[f"{name}/group_std_mean"] = statistics.fmean(statistics.pstdev(group) for group in groups)
        row[f"{name}/expected_return"] = statistics.fmean(expected_return(node, discount) for node in nodes)
        if turn:
            row[f"{name}/ended_early"] = statistics.fmean(node.turn < turn for node in nodes)
        outcomes = [a.outcome for node in nodes for a in node.joint_actions]
        row |= {f"{name}/{key}": value for key, value in _means(o.metrics for o in outcomes).items()}
        row |= {f"{name}/level/{key}": value for key, value in _means(o.levels for o in outcomes).items()}
        row |= _agent_rewards(name, [a for node in nodes for a in node.joint_actions])
        row |= _baseline_rewards(name, nodes)
    row |= revision_metrics(episodes, num_turns)
    transitions = (transition for node in _nodes(episodes) for _, transition in sorted(node.transitions.items()))
    return row | dict(sorted(_means(transitions).items()))


def nodes_by_turn(episodes: Sequence[Episode], num_turns: int, whole: bool) -> dict[int, list[Node]]:
    """Return the nodes that count in each turn (from 0): its own, and the last nodes of branches that ended early."""
    by_turn: dict[int, list[Node]] = defaultdict(list)
    sizes = {node.turn: len(node.joint_actions) for node in _nodes(episodes)}
    for episode in episodes:
        early = {stop.path for stop in episode.stops if stop.reason == "early_termination"}
        for path, node in episode.nodes():
            by_turn[node.turn].append(node)
            own = len(node.joint_actions)
            copies = own if whole else 1  # of a node that ended early, or of one joint action that solved the task
            for turn in range(node.turn + 1, num_turns):
                ended = [node] * copies if path in early else []
                for index in sorted(node.stopped):
                    last = _repeated(node, index, sizes.get(turn, own), num_turns - turn - 1)
                    ended += [last] * (copies // own if whole else 1)
                if ended:
                    by_turn[turn] += ended
                copies *= sizes.get(turn, own) if whole else 1
    return by_turn


def _repeated(node: Node, index: int, size: int, turns_left: int) -> Node:
    """Return the node of a later turn that stands for joint action `index`, which solved the task: as many joint
    actions as other nodes of that turn have, all equal to this one."""
    actions, stopped = [node.joint_actions[index]] * size, {0: turns_left} if turns_left else {}
    return replace(node, joint_actions=actions, children={}, stopped=stopped, greedy=None, counterfactuals={})


def expected_return(node: Node, discount: float) -> float:
    """Return the mean reward of the node's joint actions plus the discounted mean of its children's expected returns.

    Advantages are computed from the returns of `marl_ray.credit`, not from this value.
    """
    mean = statistics.fmean(a.reward for a in node.joint_actions)
    below = [expected_return(child, discount) for child in node.children.values()]
    rewards = ((node.joint_actions[index].reward, left) for index, left in node.stopped.items())
    below += [kept_return(reward, discount, left - 1) for reward, left in rewards]
    return mean + discount * statistics.fmean(below) if below else mean


def rollout_metrics(episodes: Sequence[Episode], seconds: float) -> MetricRow:
    """Return token counts, lengths, early ends, and the sums of the outcomes' counts."""
    completions = [c for node in _nodes(episodes) for group in node.every_completion for c in group]
    tokens, count = sum(len(c.token_ids) for c in completions), len(completions)
    row: MetricRow = {
        "rollout/episodes": len(episodes),
        "rollout/joint_samples": joint_samples(episodes),
        "rollout/tokens": tokens,
        "rollout/tokens_per_s": tokens / seconds if seconds else 0.0,
        "rollout/completion_tokens_mean": tokens / count if count else 0.0,
        "rollout/truncated_rate": sum(c.finish_reason == "length" for c in completions) / count if count else 0.0,
        "rollout/too_long_prompts": count_stops(episodes, "prompt_too_long"),
        "rollout/control_tokens": sum(episode.control_tokens for episode in episodes),
        "rollout/unscored": sum(len(episode.unscored) for episode in episodes),
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
    values = {
        "loss": stats.loss,
        "grad_norm": stats.grad_norm,
        "learning_rate": stats.learning_rate,
        "optimizer_steps": stats.optimizer_steps,
        "skipped_steps": stats.skipped_steps,
        "weight_version": version,
        "logprob_gap": stats.logprob_gap,
    }
    if (ratios := stats.importance_ratios) is not None:
        values |= {"ratio_mean": ratios.mean, "ratio_max": ratios.max, "ratio_cut": ratios.cut}
        values["effective_sample_size"] = ratios.effective_sample_size
    values["entropy"] = stats.entropy
    if (clipping := stats.clipping) is not None:
        values |= {"clip_fraction": clipping.clip_fraction, "policy_ratio_mean": clipping.ratio_mean}
        values |= {"policy_ratio_max": clipping.ratio_max, "policy_kl": clipping.kl}
    values["reference_kl"] = stats.reference_kl
    if (critic := stats.critic) is not None:
        values |= {"critic_loss": critic.loss, "value_mean": critic.value}
        values["explained_variance"] = critic.explained_variance
    return {f"{policy.key}/{name}": value for name, value in values.items() if value is not None}


def staleness_metrics(agent: int, batch: Batch) -> MetricRow:
    """Return the mean (over tokens) and maximum number of versions that the sampling weights were behind the batch's
    version; nothing for a batch without tokens."""
    spans = [
        (batch.step - version, tokens)
        for mini_batch in batch.mini_batches
        for group in mini_batch.groups
        for completion in group.completions
        for version, tokens in completion.spans
    ]
    tokens = sum(count for _, count in spans)
    if not tokens:
        return {}
    mean = sum(stale * count for stale, count in spans) / tokens
    return {f"agent_{agent}/staleness_mean": mean, f"agent_{agent}/staleness_max": max(stale for stale, _ in spans)}


def _agent_rewards(turn: str, actions: Sequence[JointAction]) -> MetricRow:
    """Return each agent's mean reward if the environment gives each agent a reward of its own."""
    if not any(action.outcome.rewards for action in actions):
        return {}
    per_agent = zip(*(action.rewards for action in actions), strict=True)
    return {f"agent_{i}/{turn}/reward_mean": statistics.fmean(rewards) for i, rewards in enumerate(per_agent)}


def _baseline_rewards(turn: str, nodes: Sequence[Node]) -> MetricRow:
    """Return the mean reward of greedy joint samples, and per agent with counterfactuals the mean difference between
    its reward and its counterfactual reward."""
    row: MetricRow = {}
    greedy = [node.greedy.reward for node in nodes if node.greedy is not None]
    if greedy:
        row[f"{turn}/greedy_reward_mean"] = statistics.fmean(greedy)
    for agent in sorted({agent for node in nodes for agent in node.counterfactuals}):
        differences = [
            action.rewards[agent] - counterfactual
            for node in nodes
            for action, counterfactual in zip(node.joint_actions, node.counterfactuals.get(agent, ()), strict=False)
        ]
        row[f"agent_{agent}/{turn}/difference_mean"] = statistics.fmean(differences)
    return row


def _means(mappings: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean of each key over the mappings that have it, in order of first appearance."""
    values: dict[str, list[float]] = {}
    for mapping in mappings:
        for key, value in mapping.items():
            values.setdefault(key, []).append(value)
    return {key: statistics.fmean(numbers) for key, numbers in values.items()}


def _nodes(episodes: Sequence[Episode]) -> list[Node]:
    return [node for episode in episodes for _, node in episode.nodes()]


def episode_record(episode: Episode) -> EpisodeRecord:
    """Return an episode as plain data."""
    return {
        "task": episode.task.id,
        "stops": [
            {"path": list(stop.path), "reason": stop.reason} | ({"detail": stop.detail} if stop.detail else {})
            for stop in episode.stops
        ],
        "nodes": [_node(path, node) for path, node in episode.nodes()],
    }


def recorded_prompt(node: Mapping[str, Any], agent: int, index: int) -> Prompt:
    """Return the prompt of an agent's completion in a node of `episode_record`: of a later role on another branch than
    the followed one, and of a program's call, its own one."""
    others = node.get("other_prompts") or [()] * len(node["prompts"])
    first_other = len(node["responses"][agent]) - len(others[agent])
    prompt: Prompt = node["prompts"][agent] if index < first_other else others[agent][index - first_other]
    return prompt


def _node(path: Sequence[int], node: Node) -> dict[str, Any]:
    record: dict[str, Any] = {
        "turn": node.turn + 1,
        "path": list(path),
        "prompts": node.prompts,
        "responses": [[call.completion.text for call in calls] for calls in node.calls],
        "weight_versions": [sorted({call.completion.weight_version for call in calls}) for calls in node.calls],
        "joint_actions": [_joint_action(action) for action in node.joint_actions],
        # Joint actions whose next prompt was too long are expanded too.
        "expanded": sorted({*node.children, *node.transitions}),
    }
    other_prompts = [[call.prompt for call in calls if call.branch] for calls in node.calls]
    if any(other_prompts):
        record["other_prompts"] = other_prompts
    # Calls of a program: the joint action of each.
    callers = [[call.sibling for call in calls if call.branch and call.sibling is not None] for calls in node.calls]
    if any(callers):
        record["callers"] = callers
    if node.greedy is not None:
        record["greedy"] = {"responses": [c.text for c in node.greedy.completions], "reward": node.greedy.reward}
    if node.counterfactuals:
        record["counterfactuals"] = {str(agent): rewards for agent, rewards in sorted(node.counterfactuals.items())}
    return record


def _joint_action(action: JointAction) -> dict[str, Any]:
    outcome = action.outcome
    data: dict[str, Any] = {"indices": list(action.indices), "reward": action.reward, "levels": dict(outcome.levels)}
    if any(reward != action.reward for reward in action.rewards):
        data["rewards"] = list(action.rewards)
    return data | (outcome.evidence.data() if outcome.evidence is not None else {})
