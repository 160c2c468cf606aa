"""Counterfactual baselines: each other sibling in place of a completion, and Shapley values of all coalitions."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

import pytest

from marl_ray.core.episode import Node, Outcome, Task
from marl_ray.core.errors import UserError
from marl_ray.credit.groups import build_group
from marl_ray.rollout.coalitions import coalitions, shapley_value
from tests.factories import make_config
from tests.rollout.counting import Counting, Sum, run_batch, tree_config


class Product(Counting):
    """Counting whose reward is the product of all numbers, each plus 1; an agent that says nothing counts as 0."""

    def attempt(self, task: Task, responses: Sequence[str], last: bool) -> Sum:
        return Sum([text or "0" for text in responses], last)

    def outcome(self, attempt: Sum, report: Any | None) -> Outcome:
        return Outcome(float(math.prod(number + 1 for number in attempt.numbers)))


def numbers(node: Node) -> list[list[int]]:
    """Return each agent's numbers, [N][G]."""
    return [[int(call.completion.text) for call in calls] for calls in node.calls]


def roots(agents: int = 2, **settings: Any) -> tuple[Any, list[Node]]:
    run = tree_config(agents, num_turns=1, num_generations=3, **settings)
    return run, [episode.root for episode in run_batch(run, Product(agents)) if episode.root is not None]


@pytest.mark.parametrize("estimator", ["difference", "centred_difference"])
def test_siblings_replace_a_completion_beside_the_same_partner(estimator: str) -> None:
    run, found = roots(counterfactual="siblings", estimator=estimator)
    for node in found:
        (a, b) = numbers(node)
        raw = [
            (a[g] + 1) * (b[g] + 1) - fmean((a[other] + 1) * (b[g] + 1) for other in range(3) if other != g)
            for g in range(3)
        ]
        centre = fmean(raw) if estimator == "centred_difference" else 0.0
        assert build_group(node, 0, run).weights == pytest.approx([(value - centre) / 3 for value in raw])


def test_siblings_under_cross_are_leave_one_out() -> None:
    """COMA's baseline from the agent's siblings, averaged over partners, is the mean of the other siblings' returns."""
    run, found = roots(counterfactual="siblings", estimator="difference", joint_mode="cross")
    plain = replace(run, agents=tuple(replace(agent, estimator="marloo") for agent in run.agents))
    for node in found:
        for agent in (0, 1):
            assert build_group(node, agent, run).weights == pytest.approx(build_group(node, agent, plain).weights)


def test_shapley_advantages_are_the_mean_marginals_over_orders() -> None:
    run, found = roots(3, estimator="shapley")
    for node in found:
        values = numbers(node)
        for agent in range(3):
            shares = []
            for g in range(3):
                worth = {c: math.prod(values[i][g] + 1 for i in c) for c in coalitions(3)}
                orders = itertools.permutations(range(3))
                before = (frozenset(order[: order.index(agent)]) for order in orders)
                shares.append(fmean(worth[earlier | {agent}] - worth[earlier] for earlier in before))
            expected = [(share - fmean(shares)) / 3 for share in shares]
            assert build_group(node, agent, run).weights == pytest.approx(expected)


def test_shapley_values_sum_to_the_gain_of_all() -> None:
    value = {coalition: float(len(coalition) ** 2 + (0 in coalition)) for coalition in coalitions(4)}
    shares = [shapley_value(agent, value) for agent in range(4)]
    assert sum(shares) == pytest.approx(17.0)
    assert shares[1] == shares[2] == pytest.approx(4.0)


def test_shapley_of_many_agents_is_rejected() -> None:
    with pytest.raises(UserError, match="6 agents are the limit"):
        make_config(num_agents=7, estimator="shapley")
