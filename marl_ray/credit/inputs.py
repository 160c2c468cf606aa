"""Inputs of estimators beside the returns, from a node of an episode tree to values of siblings, [G].

`marl_ray.credit.estimators.base.SiblingValues` defines the inputs, by the same names.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

from marl_ray.config import AgentConfig, AlgorithmConfig, Config, CreditConfig
from marl_ray.core.episode import Node
from marl_ray.core.preference import preferences_by_return
from marl_ray.credit.estimators.base import whitened
from marl_ray.credit.preferences import joint_logprobs, preference_weights
from marl_ray.credit.requirements import estimator_requirements
from marl_ray.credit.returns import completion_returns, penalize_overlong

ROUNDING = 1e-9
"""Largest difference between a return and the sum of its levels that is due to rounding."""


def estimator_inputs(
    node: Node, agent: int, config: Config, action_returns: Sequence[float], credited: Sequence[float]
) -> dict[str, tuple[float, ...]]:
    """Return the inputs that the agent's estimator requires, by name.

    `action_returns` [J] are the agent's returns of the joint actions, and `credited` [G] the returns of its group.
    """
    settings = config.agents[agent]
    inputs: dict[str, tuple[float, ...]] = {}
    for name in estimator_requirements(settings.estimator).inputs:
        match name:
            case "greedy_rewards":
                values = greedy_rewards(node, agent, settings.estimator)
            case "lengths":
                values = [float(len(call.completion.token_ids)) for call in node.group(agent)]
            case "levels":
                processor = config.reward_processor
                scale = processor.scale_factor if processor.enabled else 1.0
                values = normalized_levels(node, agent, credited, scale)
            case "preferences":
                values = preferences_of(node, agent, settings, config.training, action_returns)
            case _ if not knows_counterfactuals(node.turn, config.training):
                values = [fmean(credited)] * len(credited)
            case _:  # the rollout stores either kind: an agent has one estimator
                values = completion_returns(node, agent, node.counterfactuals[agent])
        inputs[name] = tuple(values)
    return inputs


def knows_counterfactuals(turn: int, training: AlgorithmConfig) -> bool:
    """Return whether the reward of a joint action with a replaced completion is its return.

    Before the last turn of a tree the return has a continuation, which is not sampled for such a joint action.
    """
    is_last = turn + 1 == training.num_turns
    return is_last or training.handoff != "all"


def greedy_rewards(node: Node, agent: int, estimator: str) -> list[float]:
    """Return the reward of the node's greedy joint action for every sibling.

    The mean over joint actions is the one of the returns, so that equal rewards are equal after rounding.
    """
    if node.greedy is None:
        raise ValueError(f"{estimator} needs a greedy joint sample at every node")
    reward = node.greedy.rewards[agent]
    return completion_returns(node, agent, [reward] * len(node.joint_actions))


def preferences_of(
    node: Node, agent: int, settings: AgentConfig, credit: CreditConfig, action_returns: Sequence[float]
) -> list[float]:
    """Return the weights of preferences by the returns of the joint actions, less the agent's overlong penalty."""
    answers = [node.calls[agent][action.indices[agent]].completion for action in node.joint_actions]
    penalized = penalize_overlong(action_returns, answers, settings.max_new_tokens, credit)
    preferences = preferences_by_return(penalized, credit.preference_pairs)
    return preference_weights(node, agent, preferences, joint_logprobs(node), settings.preference_beta)


def normalized_levels(node: Node, agent: int, returns: Sequence[float], scale: float) -> list[float]:
    """Return the sum of the levels' values, each less its mean in the group and divided by its deviation, [G].

    `scale` is the factor of the reward. The rest of the credited `returns` [G], for example an overlong penalty, the
    agent's own part of the reward or a continuation, is one more level.
    """
    import torch  # imported late: the driver starts without torch

    names: dict[str, None] = {}  # a set in order of appearance
    for action in node.joint_actions:
        names |= dict.fromkeys(action.outcome.levels)
    values: list[list[float]] = []
    for name in names:
        of_actions = [scale * action.outcome.levels.get(name, 0.0) for action in node.joint_actions]
        values.append(completion_returns(node, agent, of_actions))
    rest = [value - sum(levels) for value, *levels in zip(returns, *values, strict=True)]
    first = rest[0]  # only differences between siblings count
    for index, value in enumerate(rest):
        rest[index] = value - first
        # Rounding alone would become a level of deviation 1.
        if math.isclose(rest[index], 0.0, abs_tol=ROUNDING):
            rest[index] = 0.0
    values.append(rest)
    result: list[float] = whitened(torch.tensor(values, dtype=torch.float64)).sum(dim=0).tolist()
    return result
