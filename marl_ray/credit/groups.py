"""Groups of one agent built from tree nodes, and batches built from groups.

The order of a batch's groups does not depend on completion times: by turn, then by episode, so that the learner can
accumulate gradients of the first turn while the second turn is sampled. The order is by episode alone, parents before
children, with several mini-batches per batch, handoff `all`, dynamic sampling or composition `chat`.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from marl_ray.config import AgentConfig, Config, CreditConfig
from marl_ray.core.batch import Batch, CriticSample, Group, MiniBatch
from marl_ray.core.episode import Completion, Episode, Node
from marl_ray.credit import ESTIMATORS
from marl_ray.credit.estimators import Estimator, whitened
from marl_ray.credit.requirements import critic_requirements, estimator_requirements
from marl_ray.credit.returns import (
    action_returns,
    baselines,
    completion_returns,
    has_lost_branches,
    is_masked,
    penalize_overlong,
)


def ordered_by_turn(config: Config) -> bool:
    """Return True if a batch's groups are ordered by turn, then by episode; otherwise the order is by episode alone."""
    rollout = config.rollout
    if config.external.composition == "chat":  # the learner joins the turns of a conversation, which follow each other
        return False
    return config.optimizer.train_batch_size is None and rollout.handoff != "all" and not rollout.dynamic_sampling


def trainable_nodes(episode: Episode, config: Config) -> list[Node]:
    """Return the nodes of an episode that are trained on, parents before children.

    A lost branch is left out of the returns of all siblings above it, which are then not comparable with other groups:
    critics and whole-batch estimators skip the nodes above a lost branch.
    """
    nodes = [node for _, node in episode.nodes()]
    compares = config.credit.critic != "none" or any(map(needs_whole_batch, config.agents))
    if config.rollout.handoff != "all" or not compares:
        return nodes
    return [node for node in nodes if not has_lost_branches(node)]


def in_order(episodes: Sequence[Episode], config: Config) -> list[Node]:
    """Return the nodes of a batch in the order of its groups."""
    nodes = [node for episode in episodes for node in trainable_nodes(episode, config)]
    return sorted(nodes, key=lambda node: node.turn) if ordered_by_turn(config) else nodes


def learns(agent: int, step: int, config: Config) -> bool:
    """Return whether an agent learns from batch `step`: always, or with `learn_in_turns` in its policy's turn.

    In turns every update is an ascent of one policy against partners that are fixed, and as each batch is sampled from
    the current policies, no importance ratio for the partners' updates is needed. HAPPO (Kuba et al., 2022, "Trust
    region policy optimisation in multi-agent reinforcement learning") updates all policies on one batch instead, one
    after another, and multiplies the advantages by the ratios of the policies that are already updated.
    """
    length = config.credit.learn_in_turns
    if not length:
        return True
    policies = config.learning_policies
    return config.policy_of(agent) == policies[step // length % len(policies)]


def build_group(node: Node, agent: int, config: Config) -> Group:
    """Return the agent's group at a node, with returns and weights, before the mini-batch's normalizer.

    With handoff `all` the whole tree below the node must be complete. For an estimator that needs the whole batch,
    weights stay empty until `weight_batch`; with a critic they are the factors of its advantages.
    """
    credit, settings = config.credit, config.agents[agent]
    if node.callers:
        return weight_group(group_of_calls(node, agent), settings, credit)
    returns = action_returns(node, agent, credit.discount, config.rollout.handoff == "all")
    completions = tuple(node.group(agent))
    credited = penalize_overlong(completion_returns(node, agent, returns), completions, settings.max_new_tokens, credit)
    own = tuple(baselines(node, agent, config, returns, credited))
    group = Group(node.turn, node.prompt_ids[agent], completions, tuple(credited), (), baselines=own, agent=agent)
    if credit.critic != "none":
        shares = loss_shares(node.turn, completions, settings.max_new_tokens, credit)
        return replace(group, weights=shares, critic_sample=build_critic_sample(node, agent, config))
    return group if needs_whole_batch(settings) else weight_group(group, settings, credit)


def group_of_calls(node: Node, agent: int) -> Group:
    """Return the agent's group at a node whose joint actions are runs of a program, without weights.

    Completions are sorted by sibling and prompt, so that the order does not depend on the timing of concurrent calls,
    and a call follows the calls whose conversation it continues.
    """
    calls = sorted(
        zip(node.callers[agent], node.other_prompt_ids[agent], node.completions[agent], strict=True),
        key=lambda call: (call[0], call[1], call[2].token_ids),
    )
    return Group(
        node.turn,
        (),
        tuple(completion for _, _, completion in calls),
        tuple(node.joint_actions[sibling].rewards[agent] for sibling, _, _ in calls),
        weights=(),
        siblings=tuple(sibling for sibling, _, _ in calls),
        prompts=tuple(prompt_ids for _, prompt_ids, _ in calls),
        agent=agent,
    )


def has_learning_signal(episode: Episode, config: Config) -> bool:
    """Return True if any completion of a trained agent has a non-zero weight."""
    nodes = [node for _, node in episode.nodes()]
    agents = [number for number, agent in enumerate(config.agents) if agent.learning_rate > 0]
    return any(weight != 0 for node in nodes for agent in agents for weight in build_group(node, agent, config).weights)


def needs_whole_batch(agent: AgentConfig) -> bool:
    """Return True if the agent's estimator weights no group before all groups of the batch are known."""
    return estimator_requirements(agent.estimator).whole_batch


def critic_needs_whole_batch(credit: CreditConfig) -> bool:
    """Return True if the critic's advantages are whitened over the batch, so that the learner waits for all groups."""
    return credit.critic != "none" and credit.normalize_advantages


def weight_group(group: Group, agent: AgentConfig, credit: CreditConfig) -> Group:
    """Return the group with the weights that follow from its returns and baselines."""
    return _with_weights(group, group_advantages(group, agent, credit), agent, credit)


def group_advantages(group: Group, agent: AgentConfig, credit: CreditConfig) -> list[float]:
    """Return the advantages [G] of a group by an estimator that does not need the whole batch."""
    if group.siblings:
        returns = dict(zip(group.siblings, group.returns, strict=True))
        values = group_advantages(replace(group, returns=tuple(returns.values()), siblings=()), agent, credit)
        of_sibling = dict(zip(returns, values, strict=True))
        return [of_sibling[sibling] for sibling in group.siblings]
    estimator = ESTIMATORS.get(agent.estimator)
    if len(group.returns) == 1 and estimator_requirements(agent.estimator).siblings:  # nothing to compare
        return [0.0]
    return advantages(group.returns, estimator, credit.normalize_advantages, group.baselines)


def weight_batch(groups: Sequence[Group], agent: AgentConfig, credit: CreditConfig) -> list[Group]:
    """Return all groups of one agent's batch, weighted by an estimator that sees all returns of the same turn."""
    turns, returns = [group.turn for group in groups], [group.returns for group in groups]
    seconds = [group.baselines for group in groups]
    values_of_group = advantages_by_turn(turns, returns, ESTIMATORS.get(agent.estimator), seconds)
    return [_with_weights(*pair, agent, credit) for pair in zip(groups, values_of_group, strict=True)]


def _with_weights(group: Group, advantages: Sequence[float], agent: AgentConfig, credit: CreditConfig) -> Group:
    shares = group_shares(group, agent, credit)
    return replace(group, weights=tuple(share * value for share, value in zip(shares, advantages, strict=True)))


def advantages_by_turn(
    turns: Sequence[int],
    given: Sequence[Sequence[float]],
    estimator: Estimator = whitened,
    baselines: Sequence[Sequence[float]] = (),
) -> list[list[float]]:
    """Apply an estimator to the values of all groups of a turn together, and return the result [G] per group.

    Turns are kept apart because, on a full tree, returns of earlier turns contain more rewards. `baselines` are the
    second argument of an estimator that has one.
    """
    values_of_turn: defaultdict[int, list[float]] = defaultdict(list)
    second_of_turn: defaultdict[int, list[float]] = defaultdict(list)
    for turn, numbers, second in zip(turns, given, baselines or [()] * len(given), strict=True):
        values_of_turn[turn] += numbers
        second_of_turn[turn] += second
    values = {
        turn: iter(advantages(of_turn, estimator, whiten=False, baselines=second_of_turn[turn]))
        for turn, of_turn in values_of_turn.items()
    }
    return [[next(values[turn]) for _ in numbers] for turn, numbers in zip(turns, given, strict=True)]


def group_shares(group: Group, agent: AgentConfig, credit: CreditConfig) -> tuple[float, ...]:
    """Return the factor of each completion of a group in the loss (see `loss_shares`)."""
    return loss_shares(group.turn, group.completions, agent.max_new_tokens, credit, group.size)


def loss_shares(
    turn: int, completions: Sequence[Completion], max_new_tokens: int, credit: CreditConfig, size: int | None = None
) -> tuple[float, ...]:
    """Return each completion's factor in the loss before the mini-batch's normalizer; 0 for masked completions. `size`
    is G, by default the number of completions.

    | loss_aggregation | factor | source |
    |---|---|---|
    | sequence_sum | w_t / G | |
    | token_mean | w_t | DAPO (Yu et al., 2025); long completions count more |
    | constant | w_t / (G * max_new_tokens) | Dr. GRPO (Liu et al., 2025, "Understanding R1-Zero-like training") |

    With `constant` every token has the same factor, whatever the length of its completion.
    """
    share = credit.turn_gradient_weights[turn]
    if credit.loss_aggregation != "token_mean":
        share /= len(completions) if size is None else size
    if credit.loss_aggregation == "constant":
        share /= max_new_tokens
    return tuple(0.0 if is_masked(completion, credit) else share for completion in completions)


def build_batch(groups: Sequence[Group], step: int, config: Config) -> Batch:
    """Return all groups of one agent in a step as mini-batches of `train_batch_size` groups."""
    size = config.optimizer.train_batch_size or max(len(groups), 1)
    return Batch(step, tuple(_mini_batch(groups[i : i + size], config) for i in range(0, len(groups), size)))


def merge_batches(batches: Sequence[Batch]) -> Batch:
    """Return a policy's batch: the batches of its agents, interleaved node by node, in as many mini-batches."""
    mini_batches = (
        MiniBatch(tuple(interleave([part.groups for part in parts])), sum(part.normalizer for part in parts))
        for parts in zip(*(batch.mini_batches for batch in batches), strict=True)
    )
    return Batch(batches[0].step, tuple(mini_batches))


def interleave(groups: Sequence[Sequence[Group]]) -> list[Group]:
    """Return the groups of all agents at the first node, then at the second node, and so on."""
    return [group for at_node in zip(*groups, strict=True) for group in at_node]


def build_agent_batch(episodes: Sequence[Episode], agent: int, step: int, config: Config) -> Batch:
    """Return one agent's batch built from complete episodes; empty if it does not learn in this step."""
    nodes = in_order(episodes, config) if learns(agent, step, config) else []
    groups = [build_group(node, agent, config) for node in nodes]
    if needs_whole_batch(config.agents[agent]):
        groups = weight_batch(groups, config.agents[agent], config.credit)
    return build_batch(groups, step, config)


def build_critic_sample(node: Node, agent: int, config: Config) -> CriticSample:
    """Return the state, the rewards and the successor states at a node, from which a critic learns.

    With handoff `all` the whole tree below the node must be complete, without lost branches (`trainable_nodes`).
    """
    rewards = completion_returns(node, agent, [action.rewards[agent] for action in node.joint_actions])
    group = node.group(agent)
    successors: list[list[tuple[int, ...]]] = [[] for _ in group]
    for index, action in enumerate(node.joint_actions):
        if config.rollout.handoff == "all" and index in node.children and action.indices[agent] < len(group):
            successors[action.indices[agent]].append(state_of(node.children[index], agent, config))
    return CriticSample(
        state_of(node, agent, config),
        tuple(penalize_overlong(rewards, group, config.agents[agent].max_new_tokens, config.credit)),
        tuple(map(tuple, successors)),
    )


def state_of(node: Node, agent: int, config: Config) -> tuple[int, ...]:
    """Return the token ids that the critic reads: the agent's prompt (iac) or all prompts (maac), as in CoMLRL 1.4."""
    joint = critic_requirements(config.credit.critic).joint_prompts
    return joint_state(node.prompt_ids, config.model.max_length) if joint else node.prompt_ids[agent]


def joint_state(prompts: Sequence[tuple[int, ...]], max_length: int) -> tuple[int, ...]:
    """Return the concatenated prompts of all agents, each cut to its last tokens if the total exceeds `max_length`."""
    if sum(map(len, prompts)) > max_length:
        length = max(1, max_length // len(prompts))
        prompts = [prompt[-length:] for prompt in prompts]
    return tuple(token for prompt in prompts for token in prompt)


def _mini_batch(groups: Sequence[Group], config: Config) -> MiniBatch:
    """Return a mini-batch. With token_mean its normalizer is the number of unmasked tokens, otherwise of groups."""
    if config.credit.loss_aggregation != "token_mean":
        return MiniBatch(tuple(groups), len(groups))
    completions = (c for group in groups for c in group.completions if not is_masked(c, config.credit))
    tokens = sum(len(completion.token_ids) for completion in completions)
    return MiniBatch(tuple(groups), max(tokens, 1))


def advantages(
    returns: Sequence[float], estimator: Estimator, whiten: bool, baselines: Sequence[float] = ()
) -> list[float]:
    """Return the advantages of one group, or of any other set of returns that is compared, in float64.

    `baselines` [G] are passed to estimators that take them. Raises TypeError or ValueError, naming the estimator, if
    the result is not a finite tensor of the returns' shape.
    """
    import torch  # imported late: the driver starts without torch

    arguments = [returns, baselines] if baselines else [returns]
    result = estimator(*(torch.tensor(values, dtype=torch.float64) for values in arguments))
    named = estimator if hasattr(estimator, "__qualname__") else type(estimator)  # a function, or a callable object
    name = f"estimator {named.__module__}:{named.__qualname__}"
    if not isinstance(result, torch.Tensor):
        raise TypeError(f"{name} must give a tensor, not {type(result).__name__}")
    if result.shape != (len(returns),):
        shapes = f"{(len(returns),)}, not {tuple(result.shape)}"
        raise ValueError(f"{name} must give advantages of the returns' shape {shapes}")
    if not bool(result.isfinite().all()) and all(map(math.isfinite, returns)):
        raise ValueError(f"{name} must give finite advantages, not {result.tolist()} for the returns {list(returns)}")
    return (whitened(result) if whiten else result).tolist()
