"""From trees to numbers, pure functions. Names never change; turns count from 1 in them, agents from 0.

A turn's numbers are means over all nodes of that turn, over all episodes. A branch that was good enough to end early
counts in the turns it did not play with its last node, as often as it would have had nodes there, so that a turn's
numbers speak of all tasks, not of the unsolved ones; `ended_early` is the share of such nodes.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from marl_ray.config import Config
from marl_ray.core.batch import Batch, UpdateStats
from marl_ray.core.episode import Completion, Episode, JointAction, Node
from marl_ray.core.ids import PolicyId
from marl_ray.core.state import TrainerState
from marl_ray.weights.receiver import WeightSyncResult

MetricRow = dict[str, float | int | str]


def rollout_row(
    config: Config, episodes: Sequence[Episode], batches: Sequence[Batch], seconds: float, executions: int
) -> MetricRow:
    """What is known of a step when its rollout is over: `batches` are one an agent, `executions` those of the sandbox,
    and `seconds` the rollout's."""
    row = episode_metrics(episodes, config.credit.discount, config.rollout.num_turns, config.rollout.handoff == "all")
    for agent, batch in enumerate(batches):
        row |= staleness_metrics(agent, batch)
    row |= rollout_metrics(episodes, seconds)
    row["sandbox/executions"] = executions
    row["sandbox/executions_per_s"] = executions / seconds if seconds else 0.0
    row["time/rollout"] = seconds
    return row


def step_row(
    state: TrainerState,
    rollout: MetricRow,
    updates: Mapping[PolicyId, UpdateStats],
    deliveries: Mapping[PolicyId, WeightSyncResult],
    times: MetricRow,
) -> MetricRow:
    """One training step, all done, which led to `state`: its rollout's row, the policies' `updates`, what became of
    their weights, and what `marl_ray.telemetry.timeline` says of it."""
    row: MetricRow = {"step": state.step, "env_steps": state.env_steps, **rollout}
    for policy, stats in updates.items():
        row |= update_metrics(policy, stats, state.step)
        if policy in deliveries:
            row |= weight_sync_metrics(policy, deliveries[policy])
    return row | times


def evaluation_row(
    config: Config, state: TrainerState, episodes: Sequence[Episode], seconds: Mapping[str, float]
) -> MetricRow:
    """One evaluation at `state`; `seconds` has eval."""
    metrics = episode_metrics(
        episodes, config.credit.discount, config.rollout.num_turns, config.rollout.handoff == "all"
    )
    row: MetricRow = {"step": state.step, "env_steps": state.env_steps}
    row |= {f"eval/{name}": value for name, value in metrics.items()}
    row["eval/episodes"] = len(episodes)
    row["eval/too_long_prompts"] = count_stops(episodes, "prompt_too_long")
    row["eval/infra_errors"] = count_stops(episodes, "infra_error")
    row["time/eval"] = seconds["eval"]
    return row


def joint_samples(episodes: Sequence[Episode]) -> int:
    """The unit of env_steps: joint actions that were sampled, of every node of every tree, greedy ones too."""
    return sum(len(node.joint_actions) + (node.greedy is not None) for node in _nodes(episodes))


def count_stops(episodes: Sequence[Episode], reason: str) -> int:
    """How many branches ended for this reason; a chain has one at most."""
    return sum(stop.reason == reason for episode in episodes for stop in episode.stops)


def episode_metrics(episodes: Sequence[Episode], discount: float, num_turns: int, whole: bool = False) -> MetricRow:
    """For each turn that was played: rewards, expected returns, the environment's metrics and levels; then the
    transitions' metrics, as expert/failures, means over all of them. `whole`: trees are grown whole (handoff `all`)."""
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
        row |= _own_rewards(name, [a for node in nodes for a in node.joint_actions])
        row |= _baseline_rewards(name, nodes)
    transitions = (transition for node in _nodes(episodes) for _, transition in sorted(node.transitions.items()))
    return row | dict(sorted(_means(transitions).items()))


def nodes_by_turn(episodes: Sequence[Episode], num_turns: int, whole: bool) -> dict[int, list[Node]]:
    """The nodes that count in each turn (from 0): those that were played, and last nodes of branches that ended
    early before. Episodes in their order, a tree's nodes parents first."""
    by_turn: dict[int, list[Node]] = defaultdict(list)
    for episode in episodes:
        early = {stop.path for stop in episode.stops if stop.reason == "early_termination"}
        for path, node in episode.nodes():
            branches = len(node.joint_actions) if whole else 1
            for turn in range(node.turn, num_turns if path in early else node.turn + 1):
                by_turn[turn] += [node] * branches ** (turn - node.turn)
    return by_turn


def expected_return(node: Node, discount: float) -> float:
    """Mean reward of the node's joint actions + discount * mean of its children's expected returns; a leaf's is its
    mean reward. Returns that learners rank siblings by are the credit's, not these."""
    mean = statistics.fmean(a.reward for a in node.joint_actions)
    if not node.children:
        return mean
    return mean + discount * statistics.fmean(expected_return(child, discount) for child in node.children.values())


def rollout_metrics(episodes: Sequence[Episode], seconds: float) -> MetricRow:
    """Tokens, lengths, what was left out, and the sums of what outcomes count."""
    completions = [c for node in _nodes(episodes) for group in node.every_completion for c in group]
    tokens = sum(len(c.token_ids) for c in completions)
    row: MetricRow = {
        "rollout/episodes": len(episodes),
        "rollout/joint_samples": joint_samples(episodes),
        "rollout/tokens": tokens,
        "rollout/tokens_per_s": tokens / seconds if seconds else 0.0,
        "rollout/completion_tokens_mean": tokens / len(completions) if completions else 0.0,
        "rollout/truncated_rate": _truncated(completions) / len(completions) if completions else 0.0,
        "rollout/too_long_prompts": count_stops(episodes, "prompt_too_long"),
        "rollout/early_terminations": count_stops(episodes, "early_termination"),
        "sandbox/infra_errors": count_stops(episodes, "infra_error"),
    }
    counts: dict[str, int] = {"sandbox/untrusted": 0, "sandbox/timeouts": 0}  # in every row, whatever was played
    for node in _nodes(episodes):
        for action in node.joint_actions:
            for key, count in action.outcome.counts.items():
                counts[key] = counts.get(key, 0) + count
    return row | counts


def update_metrics(policy: PolicyId, stats: UpdateStats, version: int) -> MetricRow:
    """One policy's part of a step's row; what was not computed is left out."""
    name = policy.key
    row: MetricRow = {
        f"{name}/loss": stats.loss,
        f"{name}/grad_norm": stats.grad_norm,
        f"{name}/learning_rate": stats.learning_rate,
        f"{name}/optimizer_steps": stats.optimizer_steps,
        f"{name}/skipped_steps": stats.skipped_steps,
        f"{name}/weight_version": version,
    }
    if stats.logprob_gap is not None:
        row[f"{name}/logprob_gap"] = stats.logprob_gap
    if stats.importance_ratios is not None:
        row[f"{name}/ratio_mean"] = stats.importance_ratios.mean
        row[f"{name}/ratio_max"] = stats.importance_ratios.max
        row[f"{name}/ratio_cut"] = stats.importance_ratios.cut
        row[f"{name}/effective_sample_size"] = stats.importance_ratios.effective_sample_size
    if stats.entropy is not None:
        row[f"{name}/entropy"] = stats.entropy
    if stats.clipping is not None:
        row[f"{name}/clip_fraction"] = stats.clipping.clip_fraction
        row[f"{name}/policy_ratio_mean"] = stats.clipping.ratio_mean
        row[f"{name}/policy_ratio_max"] = stats.clipping.ratio_max
        row[f"{name}/policy_kl"] = stats.clipping.kl
    if stats.reference_kl is not None:
        row[f"{name}/reference_kl"] = stats.reference_kl
    if stats.critic is not None:
        row[f"{name}/critic_loss"] = stats.critic.loss
        row[f"{name}/value_mean"] = stats.critic.value
        if stats.critic.explained_variance is not None:
            row[f"{name}/explained_variance"] = stats.critic.explained_variance
    return row


def weight_sync_metrics(policy: PolicyId, delivery: WeightSyncResult) -> MetricRow:
    """What was sent of a policy's weights, and how many of them had changed, where somebody looked."""
    row: MetricRow = {f"{policy.key}/sent_bytes": delivery.sent_bytes}
    if delivery.changed is not None:
        row[f"{policy.key}/changed_share"] = delivery.changed
    return row


def staleness_metrics(agent: int, batch: Batch) -> MetricRow:
    """How many versions behind the batch's the weights were that produced its tokens: the mean over tokens, and the
    most. Nothing for a batch without tokens."""
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


def _own_rewards(turn: str, actions: Sequence[JointAction]) -> MetricRow:
    """Each agent's mean reward, if the environment gives the agents rewards of their own."""
    if not any(action.outcome.rewards for action in actions):
        return {}
    per_agent = zip(*(action.rewards for action in actions), strict=True)
    return {f"agent_{i}/{turn}/reward_mean": statistics.fmean(rewards) for i, rewards in enumerate(per_agent)}


def _baseline_rewards(turn: str, nodes: Sequence[Node]) -> MetricRow:
    """What baselines were worth, where estimators have some: the mean reward of greedy joint samples, and for agents
    with counterfactuals the mean of what their answers added to their own reward."""
    row: MetricRow = {}
    greedy = [node.greedy.reward for node in nodes if node.greedy is not None]
    if greedy:
        row[f"{turn}/greedy_reward_mean"] = statistics.fmean(greedy)
    for agent in sorted({agent for node in nodes for agent in node.counterfactuals}):
        added = [
            action.rewards[agent] - without
            for node in nodes
            for action, without in zip(node.joint_actions, node.counterfactuals.get(agent, ()), strict=False)
        ]
        row[f"agent_{agent}/{turn}/difference_mean"] = statistics.fmean(added)
    return row


def _means(mappings: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """The mean of each key over those that have it, in the order in which keys first appear."""
    values: dict[str, list[float]] = {}
    for mapping in mappings:
        for key, value in mapping.items():
            values.setdefault(key, []).append(value)
    return {key: statistics.fmean(found) for key, found in values.items()}


def _nodes(episodes: Sequence[Episode]) -> list[Node]:
    return [node for episode in episodes for _, node in episode.nodes()]


def _truncated(completions: Sequence[Completion]) -> int:
    return sum(c.finish_reason == "length" for c in completions)
