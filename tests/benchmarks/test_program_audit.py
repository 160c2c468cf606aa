"""benchmarks/credit/programs.py: exact gradients by finite differences, and methods at their expectation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.credit.__main__ import LIMIT
from benchmarks.credit.programs import CHUNK, METHODS, PROGRAMS, Program, audit_program

LOUD = PROGRAMS[1]


def test_the_gradient_is_the_slope_of_the_expected_reward() -> None:
    """Compute it by hand for the second agent of the loud relay, whose prompt is its card and the first move."""
    first, second = (np.exp(one) / np.exp(one).sum(-1, keepdims=True) for one in LOUD.logits())
    exact = LOUD.gradient()[first.size :].reshape(second.shape)
    for card in range(2):
        for move in range(2):
            # The chance that this prompt comes up while the first player holds card c is first[c, move] / 4.
            right = [first[c, move] / 4 for c in range(2)]
            policy = second[card * 3 + move]
            by_hand = policy * (np.array(right) - policy @ np.array(right))
            assert exact[card * 3 + move] == pytest.approx(by_hand)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_all_methods_are_at_their_expectation(program: Program) -> None:
    found = [audit_program(program, method, CHUNK) for method in METHODS]
    assert [one.method.name for one in found if one.standard_errors > LIMIT] == []


def test_a_wrong_weight_is_found() -> None:
    replays = next(method for method in METHODS if method.name == "marloo, branch replays")
    assert audit_program(LOUD, replace(replays, scale=1.2), CHUNK).standard_errors > LIMIT


def test_replays_help_an_agent_whose_part_is_small() -> None:
    runs, replays = (next(m for m in METHODS if m.name == f"marloo, {name}") for name in ("runs", "branch replays"))
    by_runs, by_calls = (audit_program(LOUD, method, CHUNK) for method in (runs, replays))
    assert by_runs.runs == by_calls.runs
    assert by_calls.parts[1] < by_runs.parts[1] / 2
    assert by_calls.tokens < by_runs.tokens
