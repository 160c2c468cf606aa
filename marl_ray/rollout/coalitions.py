"""Coalitions of agents: the joint actions of a node with the completions of some agents left empty."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import chain, combinations

from marl_ray.core.episode import Node

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
