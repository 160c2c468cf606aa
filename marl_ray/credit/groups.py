"""Groups of one agent built from tree nodes, and batches built from groups.

The order of a batch's groups does not depend on completion times: by turn, then by episode, so that the learner can
accumulate gradients of the first turn while the second turn is sampled. The order is by episode alone, parents before
children, with several mini-batches per batch, handoff `all`, dynamic sampling or composition `chat`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

from marl_ray.config import AgentConfig, AlgorithmConfig, Config, CreditConfig
from marl_ray.config.sections import ExternalConfig
from marl_ray.core.batch import Batch, CriticSample, Group, MiniBatch
from marl_ray.core.episode import NOT_CALLED, AgentCall, Episode, Node
from marl_ray.core.ids import PolicyId
from marl_ray.credit.advantages import advantages_by_turn, group_advantages
from marl_ray.credit.estimators.base import load_estimator
from marl_ray.credit.inputs import estimator_inputs
from marl_ray.credit.requirements import critic_requirements, estimator_requirements
from marl_ray.credit.returns import (
    action_returns,
    completion_returns,
    has_lost_branches,
    is_masked,
    less_latency,
    penalize_overlong,
)


def ordered_by_turn(training: AlgorithmConfig, external: ExternalConfig) -> bool:
    """Return True if a batch's groups are ordered by turn, then by episode; otherwise the order is by episode alone."""
    if external.composition == "chat":
        # The learner joins the turns of a conversation into one row, so they have to follow each other.
        return False
    return training.train_batch_size is None and training.handoff != "all" and not training.dynamic_sampling


def trainable_nodes(episode: Episode, training: AlgorithmConfig, agents: Sequence[AgentConfig]) -> list[Node]:
    """Return the nodes of an episode that are trained on, parents before children.

    A lost branch is left out of the returns of all siblings above it, which are then not comparable with other groups:
    critics and whole-batch estimators skip the nodes above a lost branch.
    """
    compares_groups = training.critic != "none" or any(map(needs_whole_batch, agents))
    skips_lost = compares_groups and training.handoff == "all"
    nodes: list[Node] = []
    for _, node in episode.nodes():
        if not skips_lost or not has_lost_branches(node):
            nodes.append(node)
    return nodes


def learns(agent: int, step: int, learn_in_turns: int, policies: Sequence[PolicyId]) -> bool:
    """Return whether an agent learns from batch `step`: always, or with `learn_in_turns` in the turn of its policy
    among the learning `policies`.
    In turns every update is an ascent of one policy against partners that are fixed, and as each batch is sampled from
    the current policies, no importance ratio for the partners' updates is needed. HAPPO (Kuba et al., 2022, "Trust
    region policy optimisation in multi-agent reinforcement learning") updates all policies on one batch instead, one
    after another, and multiplies the advantages by the ratios of the policies that are already updated.
    """
    if not learn_in_turns:
        return True
    turn = step // learn_in_turns  # a policy learns for as many steps in a row
    return agent in policies[turn % len(policies)].agents


def build_group(node: Node, agent: int, config: Config) -> Group:
    """Return the agent's group at a node, with returns and weights, before the mini-batch's normalizer.

    With handoff `all` the whole tree below the node must be complete. For an estimator that needs the whole batch,
    weights stay empty until `weight_batch`; with a critic they are the factors of its advantages.

    Calls are sorted by sibling and prompt, so that the order does not depend on the timing of a program's concurrent
    calls, and a call follows the calls whose conversation it continues.
    """
    if node.replays:
        return build_replay_group(node, agent, config)
    credit = config.training
    settings = config.agents[agent]
    calls = tuple(sorted(node.group(agent), key=_place))
    returns = action_returns(node, agent, credit.discount, credit.handoff == "all")
    credited = completion_returns(node, agent, returns)
    if calls[0].branch == 0:  # the penalty is for one completion per sibling, which programs do not have
        completions = [call.completion for call in calls]
        credited = penalize_overlong(credited, completions, settings.max_new_tokens, credit)
    inputs: dict[str, tuple[float, ...]] = {}
    for name, values in estimator_inputs(node, agent, config, returns, credited).items():
        inputs[name] = _of_calls(calls, values)
    group = Group(node.turn, calls, _of_calls(calls, credited), inputs=inputs)
    if credit.critic != "none":
        shares = group_shares(group, settings, credit)
        sample = build_critic_sample(node, agent, settings, credit, config.model.max_length)
        return replace(group, weights=shares, critic_sample=sample)
    if needs_whole_batch(settings):
        return group
    return weight_group(group, settings, credit)


def build_replay_group(node: Node, agent: int, config: Config) -> Group:
    """Return the agent's calls that were sampled anew, with the returns and weights of their replays.

    Only calls of one replay are compared: they answer one prompt, and differ in nothing that was sampled before.
    """
    settings = config.agents[agent]
    training = config.training
    rewards = node.rewards_of(agent)
    rows: list[tuple[AgentCall, float, float]] = []
    for replay in node.replays:
        if replay.agent != agent:
            continue
        own = [node.calls[agent][index] for index in replay.calls]
        compared = tuple(sorted(own, key=_place))
        siblings = Group(node.turn, compared, ()).siblings
        # A sibling is a run, and so has the number of its joint action.
        returns = tuple(map(rewards.__getitem__, siblings))
        group = Group(node.turn, compared, returns)
        group = weight_group(group, settings, training)
        for call, value, weight in zip(compared, group.returns, group.weights, strict=True):
            rows.append((call, value, replay.weight * weight))
    if not rows:
        # Every agent has a group of every node, so that batches of agents with one policy are merged node by node.
        rows.append((AgentCall(agent, "", (), NOT_CALLED, branch=1, sibling=0), rewards[0], 0.0))
    rows.sort(key=lambda row: _place(row[0]))
    calls, returns, weights = zip(*rows, strict=True)
    return Group(node.turn, calls, returns, weights)


def _place(call: AgentCall) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    """Return the key by which the calls of a group are sorted."""
    assert call.sibling is not None, "a call without a sibling is in no group"
    return call.sibling, call.prompt_ids, call.completion.token_ids


def _of_calls(calls: Sequence[AgentCall], values: Sequence[float]) -> tuple[float, ...]:
    """Return each call's value from the values of the siblings, [G]."""
    siblings = dict.fromkeys(call.sibling for call in calls)
    value_of = dict(zip(siblings, values, strict=True))
    return tuple(value_of[call.sibling] for call in calls)


def has_learning_signal(episode: Episode, config: Config) -> bool:
    """Return True if any completion of a trained agent has a non-zero weight."""
    trained = [number for number, agent in enumerate(config.agents) if agent.learning_rate > 0]
    for _, node in episode.nodes():
        for agent in trained:
            if any(build_group(node, agent, config).weights):
                return True
    return False


def needs_whole_batch(agent: AgentConfig) -> bool:
    """Return True if the agent's estimator weights no group before all groups of the batch are known."""
    return estimator_requirements(agent.estimator).whole_batch


def critic_needs_whole_batch(credit: CreditConfig) -> bool:
    """Return True if the critic's advantages are whitened over the batch, so that the learner waits for all groups."""
    return credit.critic != "none" and credit.normalize_advantages


def weight_group(group: Group, agent: AgentConfig, credit: CreditConfig) -> Group:
    """Return the group with the weights that follow from its returns and baselines."""
    return _with_weights(group, group_advantages(group, agent, credit), agent, credit)


def weight_batch(groups: Sequence[Group], agent: AgentConfig, credit: CreditConfig) -> list[Group]:
    """Return all groups of one agent's batch, weighted by an estimator that sees all returns of the same turn."""
    turns = [group.turn for group in groups]
    returns = [group.returns for group in groups]
    inputs = [group.inputs for group in groups]
    of_groups = advantages_by_turn(turns, returns, load_estimator(agent.estimator), inputs)
    weighted: list[Group] = []
    for group, values in zip(groups, of_groups, strict=True):
        weighted.append(_with_weights(group, values, agent, credit))
    return weighted


def _with_weights(group: Group, advantages: Sequence[float], agent: AgentConfig, credit: CreditConfig) -> Group:
    shares = group_shares(group, agent, credit)
    weights = [share * value for share, value in zip(shares, advantages, strict=True)]
    return replace(group, weights=tuple(weights))


def group_shares(group: Group, agent: AgentConfig, credit: CreditConfig) -> tuple[float, ...]:
    """Return each completion's factor in the loss before the mini-batch's normalizer; 0 for masked completions.

    | loss_aggregation | factor | source |
    |---|---|---|
    | sequence_sum | w_t / G | |
    | token_mean | w_t | DAPO (Yu et al., 2025); long completions count more |
    | constant | w_t / (G * max_new_tokens) | Dr. GRPO (Liu et al., 2025, "Understanding R1-Zero-like training") |

    With `constant` every token has the same factor, whatever the length of its completion.
    """
    share = credit.turn_gradient_weights[group.turn]  # w_t
    if credit.loss_aggregation != "token_mean":
        share /= group.size
    if credit.loss_aggregation == "constant":
        share /= agent.max_new_tokens
    shares: list[float] = []
    for completion in group.completions:
        shares.append(0.0 if is_masked(completion, credit) else share)
    return tuple(shares)


def build_batch(groups: Sequence[Group], step: int, training: AlgorithmConfig) -> Batch:
    """Return all groups of one agent in a step as mini-batches of `train_batch_size` groups."""
    size = training.train_batch_size or max(len(groups), 1)
    mini_batches: list[MiniBatch] = []
    for start in range(0, len(groups), size):
        mini_batches.append(_mini_batch(groups[start : start + size], training))
    return Batch(step, tuple(mini_batches))


def merge_batches(batches: Sequence[Batch]) -> Batch:
    """Return a policy's batch: the batches of its agents, interleaved node by node, in as many mini-batches."""
    mini_batches: list[MiniBatch] = []
    for parts in zip(*(batch.mini_batches for batch in batches), strict=True):
        groups = interleave([part.groups for part in parts])
        mini_batches.append(MiniBatch(tuple(groups), sum(part.normalizer for part in parts)))
    return Batch(batches[0].step, tuple(mini_batches))


def interleave(groups: Sequence[Sequence[Group]]) -> list[Group]:
    """Return the groups of all agents at the first node, then at the second node, and so on."""
    return list(chain.from_iterable(zip(*groups, strict=True)))


def build_critic_sample(
    node: Node, agent: int, settings: AgentConfig, training: AlgorithmConfig, max_length: int
) -> CriticSample:
    """Return the state, the rewards and the successor states at a node, from which a critic learns.

    With handoff `all` the whole tree below the node must be complete, without lost branches (`trainable_nodes`).
    """
    timed = less_latency(node, node.rewards_of(agent))
    rewards = completion_returns(node, agent, timed)
    group = node.group(agent)
    completions = [call.completion for call in group]
    successors: list[list[tuple[int, ...]]] = [[] for _ in group]
    for index, action in enumerate(node.joint_actions):
        answer = action.indices[agent]
        is_continued = training.handoff == "all" and index in node.children
        if is_continued and answer < len(group):
            successors[answer].append(state_of(node.children[index], agent, training.critic, max_length))
    return CriticSample(
        state_of(node, agent, training.critic, max_length),
        tuple(penalize_overlong(rewards, completions, settings.max_new_tokens, training)),
        tuple(map(tuple, successors)),
    )


def state_of(node: Node, agent: int, critic: str, max_length: int) -> tuple[int, ...]:
    """Return the token ids that the critic reads: the agent's prompt (iac) or all prompts (maac), as in CoMLRL 1.4."""
    if critic_requirements(critic).joint_prompts:
        return joint_state([calls[0].prompt_ids for calls in node.calls], max_length)
    return node.calls[agent][0].prompt_ids


def joint_state(prompts: Sequence[tuple[int, ...]], max_length: int) -> tuple[int, ...]:
    """Return the concatenated prompts of all agents, each cut to its last tokens if the total exceeds `max_length`."""
    if sum(map(len, prompts)) > max_length:
        # Every agent gets an equal part; the end of a prompt has the task's newest observation.
        length = max(1, max_length // len(prompts))
        prompts = [prompt[-length:] for prompt in prompts]
    return tuple(chain.from_iterable(prompts))


def _mini_batch(groups: Sequence[Group], credit: CreditConfig) -> MiniBatch:
    """Return a mini-batch. With token_mean its normalizer is the number of unmasked tokens, otherwise of groups."""
    if credit.loss_aggregation != "token_mean":
        return MiniBatch(tuple(groups), len(groups))
    tokens = 0
    for group in groups:
        for completion in group.completions:
            if not is_masked(completion, credit):
                tokens += len(completion.token_ids)
    return MiniBatch(tuple(groups), max(tokens, 1))
