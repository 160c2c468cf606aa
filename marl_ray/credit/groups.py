"""Nodes in, one agent's weighted groups out, and batches of them.

A batch's groups have an order of their own, which does not depend on what was played first: by turn, then by draw, so
that those of the first turn can be learned from while the second is being played. Where a batch is cut into several
mini-batches, where whole trees are grown, or draws are skipped, it is by draw, each tree's nodes parents first.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from marl_ray.config import AgentConfig, Config, CreditConfig
from marl_ray.core.batch import Batch, Group, MiniBatch
from marl_ray.core.episode import Completion, Episode, Node
from marl_ray.credit import BEYOND_SIBLINGS, ESTIMATORS
from marl_ray.credit.baselines import baselines
from marl_ray.credit.critic_samples import build_critic_sample
from marl_ray.credit.estimators import Estimator, whitened
from marl_ray.credit.overlong import is_masked, penalize_overlong
from marl_ray.credit.returns import action_returns, completion_returns, has_lost_branches


def ordered_by_turn(config: Config) -> bool:
    """Whether a batch's groups are ordered by turn, then by draw; else by draw alone."""
    rollout = config.rollout
    return config.optimizer.train_batch_size is None and rollout.handoff != "all" and not rollout.dynamic_sampling


def trainable_nodes(episode: Episode, config: Config) -> list[Node]:
    """The nodes of an episode that can be learned from, parents first.

    Where a branch was lost, what follows counts for none of the siblings above it. That is fair among them, but not
    beside other groups: where a critic or an estimator compares with those, the nodes above a loss are left out.
    """
    nodes = [node for _, node in episode.nodes()]
    compares = config.credit.critic != "none" or any(map(needs_whole_batch, config.agents))
    if config.rollout.handoff != "all" or not compares:
        return nodes
    return [node for node in nodes if not has_lost_branches(node)]


def in_order(episodes: Sequence[Episode], config: Config) -> list[Node]:
    """A batch's nodes in the order of its groups."""
    nodes = [node for episode in episodes for node in trainable_nodes(episode, config)]
    return sorted(nodes, key=lambda node: node.turn) if ordered_by_turn(config) else nodes


def build_group(node: Node, agent: int, config: Config) -> Group:
    """The agent's group at a node, with what it is credited with and its weights, which no other group changes.

    The mini-batch's normalizer is to come. With handoff `all` the whole tree below the node must be known. Where the
    agent `needs_whole_batch`, the weights are to come too (`weight_batch`).
    """
    credit, settings = config.credit, config.agents[agent]
    returns = action_returns(node, agent, credit.discount, config.rollout.handoff == "all")
    completions = tuple(node.group(agent))
    credited = penalize_overlong(completion_returns(node, agent, returns), completions, settings.max_new_tokens, credit)
    group = Group(
        node.turn,
        node.prompt_ids[agent],
        completions,
        tuple(credited),
        weights=(),
        baselines=tuple(baselines(node, agent, settings.estimator)),
    )
    if credit.critic != "none":
        shares = loss_shares(node.turn, completions, settings.max_new_tokens, credit)
        return replace(group, weights=shares, critic_sample=build_critic_sample(node, agent, config))
    return group if needs_whole_batch(settings) else weight_group(group, settings, credit)


def has_learning_signal(episode: Episode, config: Config) -> bool:
    """Whether anybody learns something from it: a completion of an agent that learns has a weight other than 0."""
    nodes = [node for _, node in episode.nodes()]
    agents = [number for number, agent in enumerate(config.agents) if agent.learning_rate > 0]
    return any(weight != 0 for node in nodes for agent in agents for weight in build_group(node, agent, config).weights)


def needs_whole_batch(agent: AgentConfig) -> bool:
    """Whether its estimator compares all of a batch, so that no group has weights before all are known."""
    return BEYOND_SIBLINGS.get(agent.estimator) == "batch"


def critic_needs_whole_batch(credit: CreditConfig) -> bool:
    """Whether a critic's advantages are compared in all of a batch, so that a learner begins when all are known."""
    return credit.critic != "none" and credit.normalize_advantages


def weight_group(group: Group, agent: AgentConfig, credit: CreditConfig) -> Group:
    """The group with the weights that follow from its returns and baselines."""
    estimator = ESTIMATORS.get(agent.estimator)
    values = advantages(group.returns, estimator, credit.normalize_advantages, group.baselines)
    shares = loss_shares(group.turn, group.completions, agent.max_new_tokens, credit)
    return replace(group, weights=tuple(share * value for share, value in zip(shares, values, strict=True)))


def weight_batch(groups: Sequence[Group], agent: AgentConfig, credit: CreditConfig) -> list[Group]:
    """All groups of one agent's batch with the weights that follow from all returns of their turn.

    Turns are compared each by itself: a whole tree's returns hold more rewards in an earlier turn than in a later one.
    """
    turns, returns = [group.turn for group in groups], [group.returns for group in groups]
    found = []
    for group, values in zip(groups, _by_turn(turns, returns, ESTIMATORS.get(agent.estimator)), strict=True):
        shares = loss_shares(group.turn, group.completions, agent.max_new_tokens, credit)
        found.append(replace(group, weights=tuple(share * value for share, value in zip(shares, values, strict=True))))
    return found


def whiten_by_turn(turns: Sequence[int], given: Sequence[Sequence[float]]) -> list[list[float]]:
    """Advantages of groups, each [G], less the mean of all of the group's turn, over their standard deviation."""
    return _by_turn(turns, given, whitened)


def _by_turn(turns: Sequence[int], given: Sequence[Sequence[float]], estimator: Estimator) -> list[list[float]]:
    """What an estimator makes of the numbers of all groups of a turn, a group at a time."""
    together: defaultdict[int, list[float]] = defaultdict(list)
    for turn, numbers in zip(turns, given, strict=True):
        together[turn] += numbers
    values = {turn: iter(advantages(of_turn, estimator, whiten=False)) for turn, of_turn in together.items()}
    return [[next(values[turn]) for _ in numbers] for turn, numbers in zip(turns, given, strict=True)]


def loss_shares(
    turn: int, completions: Sequence[Completion], max_new_tokens: int, credit: CreditConfig
) -> tuple[float, ...]:
    """What each sibling's advantage is multiplied with, before the mini-batch's normalizer [G]; 0: it is masked.

    sequence_sum: w_t / G. token_mean: w_t, as in DAPO (Yu et al., 2025), where long completions count more. constant:
    w_t / (G * max_new_tokens), as in Dr. GRPO (Liu et al., 2025, "Understanding R1-Zero-like training"), so that a
    token counts the same however long its completion is, and the loss does not grow with the room that there is.
    """
    share = credit.turn_gradient_weights[turn]
    if credit.loss_aggregation != "token_mean":
        share /= len(completions)
    if credit.loss_aggregation == "constant":
        share /= max_new_tokens
    return tuple(0.0 if is_masked(completion, credit) else share for completion in completions)


def build_batch(groups: Sequence[Group], step: int, config: Config) -> Batch:
    """All groups of one agent in a step, cut into mini-batches of `train_batch_size`."""
    size = config.optimizer.train_batch_size or max(len(groups), 1)
    return Batch(step, tuple(_mini_batch(groups[i : i + size], config) for i in range(0, len(groups), size)))


def joined(batches: Sequence[Batch]) -> Batch:
    """The batch of a policy, of those of the agents that play with it: node by node the groups of all, in as many
    mini-batches as each agent alone has."""
    parts = zip(*(batch.mini_batches for batch in batches), strict=True)
    return Batch(batches[0].step, tuple(map(_joined, parts)))


def _joined(parts: Sequence[MiniBatch]) -> MiniBatch:
    return MiniBatch(tuple(interleave([part.groups for part in parts])), sum(part.normalizer for part in parts))


def interleave(groups: Sequence[Sequence[Group]]) -> list[Group]:
    """The agents' groups at the first node, then those at the second, ..."""
    return [group for at_node in zip(*groups, strict=True) for group in at_node]


def build_agent_batch(episodes: Sequence[Episode], agent: int, step: int, config: Config) -> Batch:
    """One agent's batch of episodes that are all complete."""
    groups = [build_group(node, agent, config) for node in in_order(episodes, config)]
    if needs_whole_batch(config.agents[agent]):
        groups = weight_batch(groups, config.agents[agent], config.credit)
    return build_batch(groups, step, config)


def _mini_batch(groups: Sequence[Group], config: Config) -> MiniBatch:
    """Its normalizer: token_mean the number of the groups' tokens but for masked ones, else that of groups."""
    if config.credit.loss_aggregation != "token_mean":
        return MiniBatch(tuple(groups), len(groups))
    completions = (c for group in groups for c in group.completions if not is_masked(c, config.credit))
    tokens = sum(len(completion.token_ids) for completion in completions)
    return MiniBatch(tuple(groups), max(tokens, 1))


def advantages(
    returns: Sequence[float], estimator: Estimator, whiten: bool, baselines: Sequence[float] = ()
) -> list[float]:
    """Of one group [G], or of what else is compared, in float64. `baselines` [G] are for estimators that take some.

    Raises TypeError and ValueError, which name the estimator, for what are no advantages of these returns.
    """
    import torch  # here: the driver starts without it

    known = [returns, baselines] if baselines else [returns]
    found = estimator(*(torch.tensor(values, dtype=torch.float64) for values in known))
    if not isinstance(found, torch.Tensor):
        raise TypeError(f"estimator {_name(estimator)} must give a tensor, not {type(found).__name__}")
    if found.shape != (len(returns),):
        shapes = f"{(len(returns),)}, not {tuple(found.shape)}"
        raise ValueError(f"estimator {_name(estimator)} must give advantages of the returns' shape {shapes}")
    if not bool(found.isfinite().all()) and all(map(math.isfinite, returns)):
        given = f"{found.tolist()} for the returns {list(returns)}"
        raise ValueError(f"estimator {_name(estimator)} must give finite advantages, not {given}")
    return (whitened(found) if whiten else found).tolist()


def _name(estimator: Estimator) -> str:
    """`module:qualname`, of the class where the estimator is an object of one."""
    named = estimator if hasattr(estimator, "__qualname__") else type(estimator)
    return f"{named.__module__}:{named.__qualname__}"
