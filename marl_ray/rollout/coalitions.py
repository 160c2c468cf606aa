"""Joint actions that estimators compare with the sampled ones: the completions of some agents are left empty
(coalitions), or one agent's completion is replaced."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import chain, combinations

from marl_ray.core.episode import Node
from marl_ray.credit.returns import completion_returns, median_index

Coalition = frozenset[int]
"""Agents whose completions are present."""


def coalitions(agents: int) -> list[Coalition]:
    """Return all 2^N subsets of the agents, smaller subsets first."""
    return list(map(frozenset, chain.from_iterable(combinations(range(agents), size) for size in range(agents + 1))))


def coalition_texts(node: Node) -> list[dict[Coalition, tuple[str, ...]]]:
    """Return for every joint action [J] its texts under each coalition."""
    every = coalitions(len(node.completions))
    return [
        {present: tuple(text if agent in present else "" for agent, text in enumerate(texts)) for present in every}
        for texts in map(node.texts, node.joint_actions)
    ]


def counterfactual_texts(node: Node, agent: int, counterfactual: str) -> list[list[tuple[str, ...]]]:
    """Return the texts [J][R] of every joint action with each of R replacements of the agent's completion.

    `counterfactual` is the setting `counterfactual`: siblings, median, or the empty completion.
    """
    replacement = ""
    if counterfactual == "median":
        returns = completion_returns(node, agent, [action.rewards[agent] for action in node.joint_actions])
        replacement = node.completions[agent][median_index(returns)].text
    found = []
    for action in node.joint_actions:
        replacements = [replacement]
        if counterfactual == "siblings":
            own = action.indices[agent]
            replacements = [completion.text for n, completion in enumerate(node.group(agent)) if n != own]
        texts = node.texts(action)
        found.append([(*texts[:agent], text, *texts[agent + 1 :]) for text in replacements])
    return found


def shapley_value(agent: int, values: Mapping[Coalition, float]) -> float:
    """Return the agent's mean marginal value over all orders in which agents may join, from the values of all
    coalitions (Shapley, 1953). The values of all agents sum to the value of all together less the value of none.

        >>> both, one, other, none = map(frozenset, ([0, 1], [0], [1], []))
        >>> shapley_value(0, {none: 0.0, one: 1.0, other: 0.0, both: 4.0})
        2.5
    """
    agents = max(map(len, values))
    return math.fsum(
        (values[present | {agent}] - value) / (agents * math.comb(agents - 1, len(present)))
        for present, value in values.items()
        if agent not in present
    )
