"""Strategies that assign methods to agents."""

from __future__ import annotations

from itertools import product

import pytest

from marl_ray.plugins.code_completion.skeleton import STRATEGIES, MethodSlot, assign_methods, balanced, parse_skeleton
from tests.plugins.code_completion.helpers import METHODS, SHARES, SKELETON, TASK


def slots(*lengths: int) -> list[MethodSlot]:
    return [MethodSlot(f"m{number}", 1, 1, 1, length, (), "") for number, length in enumerate(lengths)]


@pytest.mark.parametrize(
    ("strategy", "num_agents", "expected"),
    [
        ("param_count", 1, (METHODS,)),
        ("param_count", 2, SHARES),
        ("param_count", 3, (("pop", "root"), ("push",), ("replace",))),
        ("param_count", 4, (("pop", "root"), ("push",), ("replace",), ())),
        ("round_robin", 2, (("push", "replace"), ("pop", "root"))),
        ("round_robin", 3, (("push", "root"), ("pop",), ("replace",))),
        ("balanced", 1, (METHODS,)),
        ("balanced", 2, (("pop", "replace"), ("push", "root"))),
        ("balanced", 5, (("replace",), ("root",), ("push",), ("pop",), ())),
    ],
)
def test_each_strategy_assigns_the_expected_methods(
    strategy: str, num_agents: int, expected: tuple[tuple[str, ...], ...]
) -> None:
    skeleton = parse_skeleton(SKELETON, "Stack", METHODS, TASK.fields["lengths"])
    assert assign_methods(strategy, skeleton.slots, num_agents) == expected


def test_every_method_has_one_agent() -> None:
    for strategy, num_agents in product(STRATEGIES, range(1, 6)):
        agents = STRATEGIES[strategy](slots(5, 9, 2, 7, 7, 1), num_agents)
        assert len(agents) == 6
        assert set(agents) <= set(range(num_agents))


def test_balanced_is_within_its_bound_of_the_optimum() -> None:
    lengths = (31, 5, 17, 17, 9, 23, 2)
    best = min(
        max(sum(length for length, owner in zip(lengths, owners, strict=True) if owner == agent) for agent in range(3))
        for owners in product(range(3), repeat=len(lengths))
    )
    agents = balanced(slots(*lengths), 3)
    load = [sum(length for length, owner in zip(lengths, agents, strict=True) if owner == agent) for agent in range(3)]
    assert max(load) <= 4 / 3 * best


def test_all_kinds_of_parameters_count() -> None:
    source = "class C:\n    def f(self, a, /, b, *c, d, **e): ...\n    @staticmethod\n    def g(): ...\n"
    skeleton = parse_skeleton(source, "C", ("f", "g"), (1, 1))
    assert [slot.parameters for slot in skeleton.slots] == [6, 0]
    assert assign_methods("param_count", skeleton.slots, 2) == (("g",), ("f",))
