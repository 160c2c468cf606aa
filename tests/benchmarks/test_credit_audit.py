"""benchmarks/credit: exact gradients by finite differences, and estimators at their expectation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.credit.__main__ import BEGIN, END, LIMIT, PAGE, value_rows
from benchmarks.credit.audit import CHUNK, VARIANTS, audit, executions_of
from benchmarks.credit.games import GAMES, MatrixGame, Signalling
from benchmarks.credit.last_turn import audit_turns

GAME = {game.name: game for game in GAMES}
STEP = 1e-6


def value(game: MatrixGame | Signalling) -> float:
    return game.value() if isinstance(game, Signalling) else game.coalition_value(range(game.agents))


@pytest.mark.parametrize("name", GAME)
def test_exact_gradients_are_the_slopes_of_the_expected_reward(name: str) -> None:
    game = GAME[name]
    for agent, gradient in enumerate(game.gradients()):
        for place in np.ndindex(gradient.shape):
            moved = list(game.logits)
            moved[agent] = moved[agent].copy()
            moved[agent][place] += STEP
            slope = (value(replace(game, logits=tuple(moved))) - value(game)) / STEP
            assert gradient[place] == pytest.approx(slope, abs=1e-4)


def test_shapley_values_sum_to_the_expected_reward() -> None:
    for name in ("climbing", "penalty", "three workers"):
        game = GAME[name]
        assert isinstance(game, MatrixGame)
        shares = [game.shapley(agent) for agent in range(game.agents)]
        assert sum(shares) == pytest.approx(value(game) - game.coalition_value([]))


@pytest.mark.parametrize("name", GAME)
def test_unbiased_estimators_are_at_their_expectation(name: str) -> None:
    game = GAME[name]
    found = [audit(game, variant, CHUNK) for variant in VARIANTS if variant.applies_to(game)]
    assert [one.variant for one in found if one.scale is not None and one.standard_errors > LIMIT] == []


def test_a_wrong_expectation_is_found() -> None:
    wrong = replace(next(v for v in VARIANTS if v.name == "magrpo"), scale=1.0)
    assert audit(GAME["three workers"], wrong, 5 * CHUNK).standard_errors > LIMIT


def test_equal_programs_are_counted_once() -> None:
    counts = {v.name: executions_of(GAME["climbing"], v) for v in VARIANTS}
    assert counts["magrpo"] == 4
    assert counts["magrpo, cross"] == counts["difference, siblings"] == 16
    assert counts["difference, empty"] == 4 + 2 * 4
    assert counts["shapley"] == 4 + 2 * 4 + 1  # together, each alone, and none


def test_the_page_has_the_exact_values() -> None:
    _, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
    tables = rest.split(END)[0]
    for row in value_rows():
        assert f"| {' | '.join(row)} |" in tables


def test_both_turns_of_a_tree_have_their_expected_gradients() -> None:
    audits = audit_turns(3 * CHUNK, seed=1)
    assert {one.variant for one in audits if one.turn == 2} == {"mareinforce", "difference", "shapley"}
    for one in audits:
        assert one.scale is None or one.standard_errors < LIMIT, one
        assert one.cosine > 0.97
