"""Task metrics, summaries and tables of an evaluation, from hand-made trees."""

from __future__ import annotations

import pytest

from marl_ray.core.episode import Episode, Node
from marl_ray.environments.code_generation import CodeGeneration
from marl_ray.evaluation.results import (
    TaskMetrics,
    measure_task,
    model_table,
    summarise,
    summary_to_json,
    swap_matrix,
)
from tests.factories import make_config, make_episode, make_node

TRAINING = make_config(num_turns=2).training


def chain(first: float, second: float | None, passed: tuple[bool, bool] = (False, False)) -> Episode:
    """Return a chain with one joint action per turn; without a second reward its second prompt was too long."""

    def of(turn: int, reward: float, children: dict[int, Node]) -> Node:
        metrics = {"all_passed": float(passed[turn])}
        return make_node(turn, [reward], children, levels={"tests": reward / 2}, metrics=metrics)

    if second is None:
        return make_episode(of(0, first, {}), ((0,), "prompt_too_long"))
    return make_episode(of(0, first, {0: of(1, second, {})}))


def test_a_task_is_measured_turn_by_turn() -> None:
    episodes = [chain(1.0, 3.0, (False, True)), chain(2.0, 4.0, (True, True)), chain(3.0, None), chain(2.0, 2.0)]
    metrics = measure_task(episodes, TRAINING, False, [1, 2, 4], CodeGeneration(1))
    discount = TRAINING.discount
    assert (metrics.samples, metrics.too_long_prompts, metrics.infra_errors) == (4, 1, 0)
    assert metrics.numbers == pytest.approx(
        {
            "return": (1 + 2 + 3 + 2 + discount * (3 + 4 + 2)) / 4,
            "turn_1/pass@1": 1 / 4,
            "turn_1/pass@2": 1 / 2,
            "turn_1/pass@4": 1.0,
            "turn_1/reward_mean": 2.0,
            "turn_1/all_passed": 1 / 4,
            "turn_1/level/tests": 1.0,
            "turn_2/pass@1": 2 / 3,
            "turn_2/pass@2": 1.0,  # of the three that reached turn 2; pass@4 does not exist
            "turn_2/reward_mean": 3.0,
            "turn_2/all_passed": 2 / 3,
            "turn_2/level/tests": 1.5,
            "turn_2/keep_rate": 1.0,
            "turn_2/fix_rate": 1 / 2,
            "turn_2/first_pass@2": 1 / 2,
        }
    )


def test_an_episode_with_a_sandbox_error_has_no_return() -> None:
    whole, root = chain(1.0, 3.0), chain(2.0, None).root
    assert root is not None
    metrics = measure_task([whole, make_episode(root, ((0,), "infra_error"))], TRAINING, False, [1], CodeGeneration(1))
    assert metrics.infra_errors == 1
    assert metrics.numbers["return"] == 1 + TRAINING.discount * 3
    assert metrics.numbers["turn_1/reward_mean"] == 1.5


def test_a_task_without_a_node_has_no_metrics() -> None:
    metrics = measure_task([make_episode(None, ((), "infra_error"))], TRAINING, False, [1], CodeGeneration(1))
    assert (metrics.infra_errors, metrics.numbers) == (1, {})


def task_metrics(*values: float | None) -> list[TaskMetrics]:
    return [TaskMetrics(f"t/{i}", 1, 0, 0, {} if v is None else {"return": v}) for i, v in enumerate(values)]


def test_differences_cover_the_tasks_that_both_models_have() -> None:
    summary = summarise({"base": task_metrics(1, 2, 3, None), "one": task_metrics(2, 3, None, 9)}, seed=1)
    assert summary.models["base"]["return"].mean == 2.0
    assert summary.models["one"]["return"].tasks == 3
    (difference,) = summary.differences
    estimate = difference.numbers["return"]
    assert (difference.model, difference.reference) == ("one", "base")
    assert (estimate.mean, estimate.low, estimate.high, estimate.tasks) == (1.0, 1.0, 1.0, 2)
    assert estimate.excludes_zero
    assert summary_to_json(summary)["differences"][0]["numbers"]["return"]["mean"] == 1.0


def test_a_table_has_one_column_per_model_and_difference() -> None:
    lines = list(model_table(summarise({"base": task_metrics(1, 2, 3), "one": task_metrics(2, 3, 4)}, seed=1)))
    assert lines[0].split() == ["base", "one", "one", "-", "base"]
    assert lines[1].startswith("return")
    assert "2.000 [1.000, 3.000]" in lines[1]
    assert lines[1].endswith("+1.000 [+1.000, +1.000] *")
    (single,) = list(model_table(summarise({"base": task_metrics(2)}, seed=1)))[1:]
    assert single.split() == ["return", "2.000"]


def test_a_matrix_has_one_cell_per_pair_of_models() -> None:
    places = {
        "a+a": task_metrics(1, 1),
        "a+b": task_metrics(2, 2),
        "b+a": task_metrics(3, 3),
        "b+b": task_metrics(4, 4),
    }
    summary = summarise(places, seed=1)
    _, header, first, second, means = swap_matrix(summary, ["a", "b"])
    assert header.split() == ["a", "b"]
    assert [first.split()[0], first.split()[1], first.split()[4]] == ["a", "1.000", "2.000"]
    assert [second.split()[1], second.split()[4]] == ["3.000", "4.000"]
    assert means == "with the own partner 2.500, with a partner of another model 2.500"
    assert " - " not in "".join(model_table(summary))


def test_many_models_are_split_into_blocks() -> None:
    models = {f"m{number}": task_metrics(number, number) for number in range(9)}
    header, upper, between, next_header, lower = model_table(summarise(models, seed=1))
    assert (header.split(), next_header.split()) == (["m0", "m1", "m2", "m3", "m4"], ["m5", "m6", "m7", "m8"])
    assert between == ""
    assert upper.split()[1::3] == ["0.000", "1.000", "2.000", "3.000", "4.000"]
    assert lower.split()[::3] == ["return", "5.000]", "6.000]", "7.000]", "8.000]"]
