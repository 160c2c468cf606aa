"""Joint actions that estimators compare with the sampled ones: the completions of some agents are left empty
(coalitions), or one agent's completion is replaced."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import combinations

from marl_ray.core.episode import Node, Texts
from marl_ray.credit.returns import completion_returns, median_index

Coalition = frozenset[int]
"""Agents whose completions are present."""


def coalitions(agents: int) -> list[Coalition]:
    """Return all 2^N subsets of the agents, smaller subsets first."""
    subsets: list[Coalition] = []
    for size in range(agents + 1):
        subsets += map(frozenset, combinations(range(agents), size))
    return subsets


def coalition_texts(node: Node) -> list[dict[Coalition, Texts]]:
    """Return for every joint action [J] its texts under each coalition."""
    every = coalitions(len(node.calls))
    of_actions: list[dict[Coalition, Texts]] = []
    for action in node.joint_actions:
        texts = node.texts(action)
        of_coalition: dict[Coalition, Texts] = {}
        for present in every:
            kept = list(texts)
            for absent in set(range(len(texts))) - present:
                kept[absent] = ""  # an agent outside the coalition says nothing
            of_coalition[present] = tuple(kept)
        of_actions.append(of_coalition)
    return of_actions


def counterfactual_texts(node: Node, agent: int, counterfactual: str) -> list[list[Texts]]:
    """Return the texts [J][R] of every joint action with each of R replacements of the agent's completion.

    `counterfactual` is the setting `counterfactual`: siblings, median, or the empty completion.
    """
    group = [call.completion.text for call in node.group(agent)]
    replacement = ""
    if counterfactual == "median":
        returns = completion_returns(node, agent, node.rewards_of(agent))
        replacement = group[median_index(returns)]
    replaced: list[list[Texts]] = []
    for action in node.joint_actions:
        replacements = [replacement]
        if counterfactual == "siblings":
            answer = action.indices[agent]
            replacements = group[:answer] + group[answer + 1 :]
        texts = node.texts(action)
        before, after = texts[:agent], texts[agent + 1 :]
        replaced.append([(*before, text, *after) for text in replacements])
    return replaced


def shapley_value(agent: int, values: Mapping[Coalition, float]) -> float:
    """Return the agent's mean marginal value over all orders in which agents may join, from the values of all
    coalitions (Shapley, 1953). The values of all agents sum to the value of all together less the value of none.

        >>> both, one, other, none = map(frozenset, ([0, 1], [0], [1], []))
        >>> shapley_value(0, {none: 0.0, one: 1.0, other: 0.0, both: 4.0})
        2.5
    """
    agents = max(map(len, values))
    terms: list[float] = []
    for present, value in values.items():
        if agent in present:
            continue
        # Share of the orders in which exactly these agents come before this one.
        orders = agents * math.comb(agents - 1, len(present))
        terms.append((values[present | {agent}] - value) / orders)
    return math.fsum(terms)
