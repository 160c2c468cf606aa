"""Weights of completions in the joint-factorised DPO loss of several agents, MADPO of CoMLRL 1.4.3.

A joint action is preferred to another one, and its probability is the product over the agents. With beta for the
temperature of the loss, agent i learns from

    L_i = - log sigmoid(beta * (D_i + sum of D_j of the partners j))        D_i = log pi_i(chosen) - log pi_i(rejected)

in which the partners' D_j have no gradient. It is direct preference optimization (DPO: Rafailov et al., 2023, "Direct
preference optimization: your language model is secretly a reward model") of the joint policy, divided among its agents.
The gradient of L_i is that of D_i times -beta * sigmoid(-beta * D), so that L_i is a policy gradient with a weight of
+beta * sigmoid(-beta * D) for the chosen completion and of the opposite for the rejected one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from marl_ray.core.episode import Node
from marl_ray.core.preference import JointPreference


def joint_logprobs(node: Node) -> list[float]:
    """Return the log-probability of each joint action, [J], summed over all tokens of all agents."""
    sums: list[list[float]] = []
    for calls in node.calls:
        sums.append([math.fsum(call.completion.logprobs) for call in calls])
    joint: list[float] = []
    for action in node.joint_actions:
        joint.append(math.fsum(sums[agent][index] for agent, index in enumerate(action.indices)))
    return joint


def preference_slope(difference: float, beta: float) -> float:
    """Return beta * sigmoid(-beta * difference), the weight of a pair whose log-probabilities differ by `difference`.

    >>> preference_slope(0.0, 0.5)
    0.25
    """
    exponent = beta * difference
    if exponent > 0:  # the exponential function of a large positive number overflows
        return beta * (math.exp(-exponent) / (1 + math.exp(-exponent)))
    return beta * (1 / (1 + math.exp(exponent)))


def preference_weights(
    node: Node,
    agent: int,
    preferences: Sequence[JointPreference],
    logprobs: Sequence[float],
    beta: float,
) -> list[float]:
    """Return the weights of an agent's completions, [G]: the mean over preferences, times G, because the loss divides
    the sum over a group by G.

    `logprobs` [J] are the log-probabilities of the joint actions, less the reference's if there is one. A completion
    that both joint actions of a preference contain cancels. All weights are 0 without a preference.

    If agents answer in an order, completions of other branches answer other prompts and are not learned from. A
    preference with such a completion is left out: to raise one side of a pair alone is no preference optimization.
    """
    size = len(node.group(agent))
    weights = [0.0] * size
    # The group comes first in the agent's calls, so an answer beyond it has no sibling.
    answers = [action.indices[agent] for action in node.joint_actions]
    learned = [pair for pair in preferences if answers[pair.chosen] < size and answers[pair.rejected] < size]
    for pair in learned:
        slope = preference_slope(logprobs[pair.chosen] - logprobs[pair.rejected], beta)
        weights[answers[pair.chosen]] += slope * size / len(learned)
        weights[answers[pair.rejected]] -= slope * size / len(learned)
    return weights
