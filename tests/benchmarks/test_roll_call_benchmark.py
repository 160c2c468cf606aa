"""benchmarks/roll_call: the measure, the choice of rates, the simulation's rewards, a run in one process, the page."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from benchmarks.credit.over_agents import ROLL_CALLS, roll_call
from benchmarks.learning.__main__ import current
from benchmarks.roll_call.__main__ import RESULTS
from benchmarks.roll_call.arms import AGAIN, CELLS, FIRST, RATES, ROLL_CALL, STEPS
from benchmarks.roll_call.constant import constant_reward
from benchmarks.roll_call.crossing import WINDOW, samples_to_target
from benchmarks.roll_call.one_run import run
from benchmarks.roll_call.report import ALL_SAMPLES, END, MARKER, PAGE, best_rate, draw, measured, primary, tables
from benchmarks.roll_call.simulation import CREDITS, DIFFERENCE, SHARED, advantages_of, team_reward
from marl_ray.config import from_keywords

RIGHT = np.array([[[[True, True], [True, False]], [[False, True], [True, True]]]])
"""Right cells of one task, two joint actions and two agents."""


def line(cell: str, rate: float, seed: int, samples: int | None, reward: float = 1.0) -> dict[str, Any]:
    return {"arm": CELLS[cell].arm(rate), "seed": seed, "samples": samples, "curve": [reward] * STEPS, "seconds": 1.0}


def test_a_run_without_a_crossing_has_no_samples() -> None:
    assert samples_to_target([1.79] * 50) is None
    assert samples_to_target([2.0] * WINDOW) == WINDOW * 16


def test_the_rate_with_the_fewest_samples_is_chosen_on_its_own_seeds() -> None:
    cell = CELLS["shared_2"]
    lines = [
        line("shared_2", rate, seed, samples)
        for rate, samples in zip(RATES, (900, 300, 310), strict=True)
        for seed in FIRST.choice
    ]
    assert best_rate(lines, cell) == RATES[1]
    assert best_rate(lines[:-1], cell) is None
    lines.append(line("shared_2", RATES[2], 1, 16))  # no seed of the choice
    assert best_rate(lines, cell) == RATES[1]
    assert measured(lines) == {}
    lines += [line("shared_2", rate, seed, 500) for rate in RATES[1:] for seed in AGAIN.choice]
    lines += [line("shared_2", RATES[0], seed, 400) for seed in (*AGAIN.choice, *AGAIN.measured)]
    assert best_rate(lines, cell, AGAIN) == RATES[0]
    assert list(measured(lines, AGAIN)["shared_2"]) == list(AGAIN.measured)
    assert measured(lines) == {}
    never = [line("shared_2", rate, seed, None, reward=rate) for rate in RATES for seed in FIRST.choice]
    assert best_rate(never, cell) == RATES[2]


def test_the_primary_table_has_the_ratios_and_their_growth() -> None:
    lines = []
    for agents, shared in ((2, 200), (4, 400), (8, None)):
        for credit, samples in (("shared", shared), ("difference", 100)):
            for seed in (*FIRST.choice, 1, 2):
                lines += [line(f"{credit}_{agents}", rate, seed, samples) for rate in RATES]
    found = primary(lines)
    assert "| 2 agents: shared, less difference | 2 | +1.000 ± 0.000 | 2 of 2 |" in found
    growth = np.log2(ALL_SAMPLES / 100) - 1
    assert f"| that with 8 agents, less that with 2 | 2 | {growth:+.3f} ± 0.000 |" in found


def test_figures_are_drawn(tmp_path: Any) -> None:
    lines = [line(name, rate, seed, 500) for name in CELLS for rate in RATES for seed in (*FIRST.choice, 1)]
    draw(lines, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 10_000


@pytest.mark.parametrize("name", ROLL_CALL.arms)
def test_an_arm_is_a_config(name: str) -> None:
    settings = {**ROLL_CALL.common, **ROLL_CALL.arms[name].overrides}
    assert from_keywords(ROLL_CALL.config, "magrpo", {}, settings).training.max_steps == STEPS


def test_the_simulation_has_the_rewards_of_the_environment() -> None:
    assert team_reward(RIGHT, worst=False).tolist() == [[0.75, 0.75]]
    assert team_reward(RIGHT, worst=True).tolist() == [[0.5, 0.5]]
    assert team_reward(np.ones((1, 1, 2, 2), dtype=bool), worst=True).tolist() == [[2.0]]


def test_credit_of_the_simulation() -> None:
    assert advantages_of(RIGHT, 0, SHARED).tolist() == [[0.0, 0.0]]  # one agent's mistake hides the other's
    assert advantages_of(RIGHT, 0, DIFFERENCE).tolist() == [[0.125, -0.125]]
    shapley = next(credit for credit in CREDITS if credit.estimator == "shapley")
    assert advantages_of(RIGHT, 0, shapley).tolist() == [[0.125, -0.125]]
    worst = replace(DIFFERENCE, worst=True)
    assert np.allclose(advantages_of(RIGHT, 0, worst), advantages_of(RIGHT, 0, replace(SHARED, worst=True)))


def test_the_exact_game_is_a_roll_call_of_one_cell() -> None:
    game = roll_call(4)
    assert game.payoff[0, 0, 0, 0] == 2.0
    assert game.payoff[0, 1, 0, 0] == 0.75
    assert game.payoff[0, 2, 0, 0] == 0.75  # an absent writer has no right cell
    assert game.coalition_value(range(4)) == pytest.approx(0.6 + 0.6**4)
    assert [game.agents for game in ROLL_CALLS] == [2, 4, 8]


def test_constant_answers_earn_about_a_quarter() -> None:
    assert constant_reward(1, "mean", "eval[:8]") >= 0.25


@pytest.mark.slow
def test_a_run_in_one_process_learns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise the reward in 24 steps, and give the same curve for the same seed."""
    monkeypatch.setitem(ROLL_CALL.common, "magrpo.max_steps", 24)
    arm = CELLS["own_2"].arm(RATES[1])
    first, second = run(arm, 1), run(arm, 1)
    assert first["curve"] == second["curve"]
    assert np.mean(first["curve"][-6:]) > np.mean(first["curve"][:6])


def test_the_page_has_the_tables_of_the_rows() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for name, made in tables(current(ROLL_CALL, RESULTS)).items():
        assert f"{MARKER.format(name)}\n\n{made}\n\n{END}" in text


def test_workers_find_the_function_of_a_run() -> None:
    # A spawned process does not import the `__main__` of a package.
    assert run.__module__ == "benchmarks.roll_call.one_run"
