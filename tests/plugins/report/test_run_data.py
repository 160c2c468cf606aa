"""The numbers of a run's page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marl_ray.plugins.report.chart_groups import COOPERATION, LEVELS, REWARDS, chart_groups
from marl_ray.plugins.report.metric_columns import (
    MAX_VALUES,
    confidence_intervals,
    evaluation_columns,
    evenly,
    training_columns,
)
from marl_ray.plugins.report.metric_titles import title_of
from marl_ray.plugins.report.overview import before_and_after, overview
from marl_ray.plugins.report.run_data import run_data
from marl_ray.plugins.report.run_setup import changed_settings
from marl_ray.results.returns_plot import centred_mean, smoothing_window
from marl_ray.storage.resume import SavedRun
from marl_ray.storage.run_folder import RunFolder
from tests.plugins.report.report_runs import write_run

REWARD = "turn_1/reward_mean"


def evaluation(step: int, reward: float, tasks: int = 100) -> dict[str, Any]:
    row = {"step": step, "env_steps": 8 * step, "eval/episodes": tasks, "time/eval": 2.0}
    return row | {f"eval/{REWARD}": reward, "eval/turn_1/reward_std": 0.5}


def training(step: int, reward: float, **metrics: float) -> dict[str, Any]:
    return {"step": step, "env_steps": 8 * step, REWARD: reward, "time/step": 1.0} | metrics


def test_the_first_and_the_last_evaluation_of_the_same_tasks_are_compared() -> None:
    rows = [evaluation(0, 9.0, tasks=2), evaluation(0, 1.0), training(1, 1.5), evaluation(1, 2.0)]
    assert before_and_after(rows, REWARD) == {
        "metric": REWARD,
        "held_out": True,
        "tasks": 100,
        "step": 1,
        "before": 1.0,
        "after": 2.0,
        "training_now": 1.5,
        "interval": (pytest.approx(1.902), pytest.approx(2.098)),
    }


def test_one_evaluation_is_no_comparison() -> None:
    numbers = before_and_after([evaluation(0, 1.0), training(1, 1.5), training(2, 2.5)], REWARD)
    assert numbers is not None
    assert (numbers["before"], numbers["after"], numbers["training_now"]) == (None, 1.0, 2.5)


def test_a_run_without_evaluations_compares_its_training_steps() -> None:
    numbers = before_and_after([training(step, float(step)) for step in range(1, 41)], REWARD)
    assert numbers is not None
    assert (numbers["held_out"], numbers["before"], numbers["after"]) == (False, 5.5, 35.5)
    assert before_and_after([], REWARD) is None


def test_levels_of_the_reward_before_and_after() -> None:
    before = evaluation(0, 0.5) | {"eval/turn_1/level/main": 0.5, "eval/turn_1/level/tests": 0.0}
    after = evaluation(1, 1.5) | {"eval/turn_1/level/main": 0.6, "eval/turn_1/level/tests": 0.9}
    levels = overview([before, training(1, 1.0), after], 1)["levels"]
    assert (levels["held_out"], levels["step"], levels["names"]) == (True, 1, ["main", "tests"])
    assert (levels["before"], levels["after"]) == ([0.5, 0.0], [0.6, 0.9])


def test_speed_is_of_the_last_steps() -> None:
    rows = [training(step, 1.0, **{"rollout/tokens": 300.0}) for step in range(1, 21)]
    speed = overview([*rows, evaluation(20, 1.0)], 1)["speed"]
    assert speed == {
        "steps": 10,
        "step_seconds": 1.0,
        "tokens_per_s": 300.0,
        "training_seconds": 20.0,
        "evaluation_seconds": 2.0,
    }


def test_measures_of_cooperation_say_their_window() -> None:
    rows = [training(step, 1.0, **{"cooperation/agreement": float(step > 2)}) for step in range(1, 13)]
    assert overview(rows, 1)["agreement"] == {
        "metric": "cooperation/agreement",
        "held_out": False,
        "first": 0.0,
        "recent": 1.0,
        "recent_rows": 10,
    }
    assert overview(rows, 1)["partners"] is None
    gain = overview([training(1, 1.0, **{"cooperation/over_one_agent_twice": 0.5})], 1)["partners"]
    assert (gain["first"], gain["recent"], gain["recent_rows"]) == (None, 0.5, 1)


def test_warnings_begin_at_step_ten() -> None:
    rows = [training(step, 1.0, **{"rollout/episodes": 2, "rollout/truncated_rate": 0.9}) for step in range(1, 11)]
    assert overview(rows[:9], 1)["warning"] is None
    warning = overview(rows, 1)["warning"]
    assert warning["text"] == "90% of recent completions were cut off at max_new_tokens"
    assert warning["remedy"] == "Raise max_new_tokens, or set overlong."


def test_columns_of_training_steps_and_evaluations() -> None:
    rows = [evaluation(0, 1.0), training(1, 1 / 3, x=0.0), training(2, 0.5, x=0.0, y=2.0), evaluation(2, 2.0)]
    assert training_columns(rows) == {
        "step": [1, 2],
        "samples": [8, 16],
        "time": [3, 4],
        "rows": 2,
        "metrics": {REWARD: [0.333333, 0.5], "time/step": 1, "x": 0, "y": [None, 2]},
    }
    columns = evaluation_columns(rows)
    assert (columns["step"], columns["time"]) == ([0, 2], [2, 6])
    assert columns["metrics"][REWARD] == [1, 2]
    assert columns["intervals"] == {REWARD: [[0.902, 1.098], [1.902, 2.098]]}


def test_columns_of_a_long_run_are_thinned_evenly_and_keep_the_last_step() -> None:
    rows = [training(step, float(step), **{f"m{n}": step / 7 for n in range(98)}) for step in range(1, 4001)]
    columns = training_columns(rows)
    assert columns["rows"] == 4000
    assert len(columns["step"]) * 100 <= MAX_VALUES
    assert columns["step"][-1] == 4000
    assert {later - earlier for earlier, later in zip(columns["step"], columns["step"][1:], strict=False)} == {3}
    assert columns["metrics"][REWARD] == columns["step"], "values are picked, not averaged"


def test_evenly_chosen_values() -> None:
    assert evenly([1, 2, 3], 3) == [1, 2, 3]
    assert evenly(list(range(10)), 5) == [1, 3, 5, 7, 9]
    assert evenly([1, 2, 3], 0) == [3]


def test_confidence_intervals_of_evaluations() -> None:
    row = {"eval/episodes": 100, "eval/turn_1/reward_mean": 2.0, "eval/turn_1/reward_std": 0.5, "eval/turn_1/x": 1.0}
    assert confidence_intervals([row], "turn_1/reward_mean") == [(pytest.approx(1.902), pytest.approx(2.098))]
    assert confidence_intervals([row], "turn_1/x") == []
    # Wilson's for none of ten: 0 to z^2 / (n + z^2)
    none = {"eval/episodes": 10, "eval/turn_1/all_passed": 0.0}
    assert confidence_intervals([none], "turn_1/all_passed") == [(0.0, pytest.approx(3.8416 / 13.8416))]
    assert confidence_intervals([none | {"eval/episodes": 1}], "turn_1/all_passed") == [(0.0, 0.0)]


def test_every_metric_has_a_chart_with_a_title() -> None:
    row = {"step": 1, "turn_2/level/aux": 1.0, "eval/turn_1/all_passed": 0.5, "agent_1/loss": 0.0, "time/step": 1.0}
    row |= {"my_env/odd_number": 3.0, "agent_0/learning_rate": 0.1}
    groups = chart_groups([row])
    by_name = {(group.section, group.name): dict(group.metrics) for group in groups}
    assert by_name[REWARDS, "all_passed"] == {"turn 1": "turn_1/all_passed"}
    assert by_name[LEVELS, "levels of the reward, turn 2"] == {"aux": "turn_2/level/aux"}
    assert by_name["Agents", "loss"] == {"agent 1": "agent_1/loss"}
    assert groups[0].name == "all_passed"
    data = {group["title"]: group for group in (group.as_data() for group in groups)}
    assert data["Tasks solved"]["unit"] == "share"
    assert data["My env: odd number"]["series"] == [("", "my_env/odd_number")]
    assert data["Learning rate"]["exact"]
    assert not data["Loss"]["exact"]


def test_measures_of_cooperation_are_in_one_section() -> None:
    measures = ["cooperation/agent_1_contribution", "cooperation/over_one_agent_twice", "tokens/critical_path"]
    measures += ["eval/reward_per_token/all", "turn_2/fix_rate", "agent_0/turn_1/credit_fidelity"]
    groups = chart_groups([dict.fromkeys(measures, 1.0)])
    assert {(group.section, group.name): dict(group.metrics) for group in groups} == {
        (COOPERATION, "contribution"): {"agent 1": "cooperation/agent_1_contribution"},
        (COOPERATION, "credit_fidelity, turn 1"): {"agent 0": "agent_0/turn_1/credit_fidelity"},
        (COOPERATION, "cooperation/over_one_agent_twice"): {"": "cooperation/over_one_agent_twice"},
        (COOPERATION, "reward_per_token"): {"all": "reward_per_token/all"},
        (COOPERATION, "fix_rate"): {"turn 2": "turn_2/fix_rate"},
        (COOPERATION, "tokens"): {"critical path": "tokens/critical_path"},
    }


def test_metrics_of_the_reference_have_titles() -> None:
    reference = Path("docs/reference/metrics.md").read_text(encoding="utf-8")
    for name in ("grad_norm", "rollout/tokens", "time/held_up_by"):
        assert name in reference
        assert title_of(name)[0] != name
    assert title_of("unknown_metric") == ("Unknown metric", "")


@given(values=st.lists(st.floats(-10, 10), min_size=1, max_size=60), lead=st.floats(0.01, 1))
def test_a_run_that_is_better_at_every_step_is_drawn_higher(values: list[float], lead: float) -> None:
    width = smoothing_window(len(values))
    lower = centred_mean(values, width)
    higher = centred_mean([value + lead for value in values], width)
    assert all(one < other for one, other in zip(lower, higher, strict=True))
    rising = [float(n) for n in range(len(values))]
    assert centred_mean(rising, width) == pytest.approx(rising), "no lag"


def test_settings_that_differ_from_their_defaults(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.config.write_text(
        "model: {name: 'bundled:toy-base'}\ndataset: {name: 'bundled:toy'}\nmagrpo: {num_turns: 3}\nseed: 7\n"
    )
    changed = changed_settings(SavedRun.read(run.path).config())
    assert ["seed", "7", "42"] in changed
    assert ["magrpo.num_turns", "3", "1"] in changed
    assert {key for key, _, _ in changed} <= {"seed", "magrpo.num_turns", "magrpo.turn_gradient_weights"}


def test_the_data_of_a_run_name_its_machine_and_setup(tmp_path: Path) -> None:
    data = run_data(RunFolder(write_run(tmp_path / "run")))
    assert data["machine"] == [["versions.ray", "2.<b>"]]
    assert (data["setup"]["turns"], data["setup"]["agents"]) == (1, 1), "without a readable config, from the metrics"
    assert "seed: 1" in data["config_text"]
    assert "step     2        16 joint samples  training reward 2.00" in data["reward_table"]
