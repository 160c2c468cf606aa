"""Comparisons of runs: the statistics, the grouping into methods, and the files, from hand-made evaluations."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from marl_ray.cli.main import main
from marl_ray.config import Config, load, to_yaml
from marl_ray.core.statistics import ComparedMethod, bootstrap_estimates, compare_methods
from marl_ray.evaluation.evaluate import Evaluation
from marl_ray.evaluation.requests import EvaluationRequest
from marl_ray.plugins.report.comparison import compare_runs
from marl_ray.plugins.report.comparison.paper_figure import reward_curves
from marl_ray.plugins.report.comparison.paper_table import latex_table
from marl_ray.storage.run_folder import RunFolder
from tests.factories import QUICKSTART

METRICS = ["return"]


def method(name: str, values: np.ndarray, seeds: tuple[int, ...] | None = None) -> ComparedMethod:
    return ComparedMethod(name, seeds or tuple(range(values.shape[0])), values[:, :, None])


def rows_of(evaluations: int) -> list[dict[str, float]]:
    steps = [{"env_steps": float(n), "turn_1/reward_mean": n / 10} for n in range(10)]
    for row in steps[:evaluations]:
        row["eval/turn_1/reward_mean"] = 0.5
    return steps


@pytest.mark.parametrize(("evaluations", "label", "value"), [((3, 4), "held-out", 0.5), ((2, 4), "training", 0.1)])
def test_all_curves_of_a_figure_show_the_same_quantity(evaluations: tuple[int, ...], label: str, value: float) -> None:
    found, curves = reward_curves(list(map(rows_of, evaluations)))
    assert found == f"{label} reward, last turn"
    assert [curve[1][1] for curve in curves] == [value, value]


def test_one_seed_gives_the_bootstrap_over_tasks() -> None:
    values = np.random.default_rng(0).normal(size=(1, 40))
    found = compare_methods([method("a", values), method("b", values + 1)], METRICS, seed=1)
    (expected,) = bootstrap_estimates(values[0][:, None], seed=1)
    assert expected is not None
    estimate = found.methods["a"]["return"]
    assert estimate.mean == pytest.approx(expected.mean)
    assert (estimate.low, estimate.high) == pytest.approx((expected.low, expected.high), abs=0.02)


def test_differences_are_paired_over_tasks_and_seeds() -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(size=(3, 1)) + rng.normal(size=(1, 50))  # much variation of seeds and of tasks
    found = compare_methods([method("a", values), method("b", values + 0.5)], METRICS, seed=1)
    difference = found.differences["b"]["return"]
    assert (difference.mean, difference.low, difference.high) == pytest.approx((0.5, 0.5, 0.5))
    assert found.methods["a"]["return"].high - found.methods["a"]["return"].low > 0.5
    other = compare_methods([method("a", values), method("b", values + 0.5, (7, 8, 9))], METRICS, seed=1)
    unpaired = other.differences["b"]["return"]
    assert unpaired.high - unpaired.low > 0.5, "other seeds are independent"


def test_intervals_cover_the_variation_of_seeds() -> None:
    """Count the intervals that cover a true difference of zero, where only seeds differ."""
    rng, covered, trials = np.random.default_rng(0), 0, 60
    for _ in range(trials):
        first, second = (rng.normal(size=(8, 1)) + np.zeros((8, 20)) for _ in range(2))
        pair = [method("a", first), method("b", second, tuple(range(10, 18)))]
        found = compare_methods(pair, METRICS, seed=1, resamples=400)
        covered += not found.differences["b"]["return"].excludes_zero
    assert 0.8 <= covered / trials <= 1.0


def test_missing_values_are_left_out() -> None:
    values = np.array([[1.0, np.nan, 3.0], [1.0, 2.0, np.nan]])
    found = compare_methods([method("a", values), method("b", values)], METRICS, seed=1)
    estimate = found.methods["a"]["return"]
    assert (estimate.mean, estimate.tasks) == (pytest.approx(7 / 4), 3)
    assert not math.isnan(estimate.low)


MakeRun = Callable[..., Path]


@pytest.fixture
def make_evaluation(tmp_path: Path) -> MakeRun:
    """A function that writes a run and an evaluation of it, and returns the evaluation's folder."""

    def make(name: str, seed: int, gain: float, tasks: int = 12, **overrides: object) -> Path:
        run = RunFolder(tmp_path / "runs" / name)
        run.make()
        run.write_config(to_yaml(load(QUICKSTART, "magrpo", {"seed": seed, **overrides})), 0)
        steps = [{"step": s, "env_steps": 8 * s, "turn_2/reward_mean": s / 10 + gain} for s in range(1, 30)]
        run.metrics.write_text("".join(json.dumps(row) + "\n" for row in steps))
        folder = tmp_path / "evaluations" / name
        folder.mkdir(parents=True)
        weights = {name: [{"agent": i, "model": str(run.models / f"agent_{i}")} for i in range(2)]}
        (folder / "evaluation.json").write_text(json.dumps({"weights": weights}))
        with (folder / "tasks.jsonl").open("w") as file:
            for task in range(tasks):
                numbers = {"return": task + gain, "turn_2/pass@1": min(1.0, task / 20 + gain), "turn_2/level/aux": 0.4}
                file.write(json.dumps({"model": name, "task": f"t/{task}", "numbers": numbers}) + "\n")
        return folder

    return make


def test_runs_that_differ_in_their_seed_are_one_method(
    make_evaluation: MakeRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = [make_evaluation(f"base-{seed}", seed, 0.0) for seed in (1, 2)]
    folders += [make_evaluation(f"slow_{seed}", seed, 0.25, **{"magrpo.learning_rate": 1e-5}) for seed in (1, 2)]
    out = tmp_path / "out"
    assert main(["compare", *map(str, folders), "--output", str(out)]) == 0
    assert "| return | 5.500 [" in capsys.readouterr().out
    content = json.loads((out / "comparison.json").read_text())
    assert content["seeds"] == {"base": [1, 2], "slow": [1, 2]}
    difference = content["differences"]["slow"]["return"]
    assert (difference["mean"], difference["low"], difference["high"]) == pytest.approx((0.25, 0.25, 0.25))
    assert "turn_2/level/aux" not in content["methods"]["base"]
    assert "| +0.250 [+0.250, +0.250] * |" in (out / "table.md").read_text()
    latex = (out / "table.tex").read_text()
    assert latex.startswith("\\begin{tabular}{lrrr}")
    assert r"turn\_2/pass@1" in latex
    assert (out / "figure.pdf").read_bytes().startswith(b"%PDF")
    assert "<svg" in (out / "figure.svg").read_text()
    commands = (out / "commands.sh").read_text()
    assert "marl-ray train magrpo --config configs/base-1.yaml" in commands
    assert (out / "configs" / "slow_2.yaml").exists()


def test_commands_compare_the_new_runs_with_the_settings_of_the_comparison(
    make_evaluation: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compare folders with a hand-made evaluation, whose numbers are not in commands.sh."""
    folders = [make_evaluation("a", 1, 0.0), make_evaluation("b", 1, 0.1, **{"magrpo.learning_rate": 1e-5})]

    def evaluate(config: Config, asked: EvaluationRequest) -> Evaluation:
        folder, weights = asked.folder, {}
        folder.mkdir()
        for one in folders:
            weights |= json.loads((one / "evaluation.json").read_text())["weights"]
        (folder / "evaluation.json").write_text(json.dumps({"weights": weights}))
        (folder / "tasks.jsonl").write_text("".join((one / "tasks.jsonl").read_text() for one in folders))
        return Evaluation(folder, {}, [], [])

    monkeypatch.setattr(compare_runs, "run_evaluation", evaluate)
    monkeypatch.chdir(tmp_path)
    step = "runs/b/checkpoints/step_000024"
    command = ["compare", "./runs/a/", step, f"--output={tmp_path / 'out'}", "--k", "1,2", "--split", "eval[:2]"]
    assert main([*command, "--override", "magrpo.eval_temperature=0.5"]) == 0
    again = (tmp_path / "out" / "commands.sh").read_text().splitlines()[-1]
    expected = f"marl-ray compare runs/a {step} --config evaluation/config.yaml --samples 2 --k 1,2 --output again"
    assert again == f"{expected} --split 'eval[:2]'"


def test_figures_of_equal_data_are_equal_files(make_evaluation: MakeRun, tmp_path: Path) -> None:
    folders = [str(make_evaluation("a", 1, 0.0)), str(make_evaluation("b", 1, 0.1, **{"magrpo.num_generations": 4}))]
    for name in ("one", "two"):
        assert main(["compare", *folders, "--output", str(tmp_path / name)]) == 0
    for name in ("figure.pdf", "figure.svg", "table.tex", "comparison.json"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_comparisons_that_mean_nothing_are_rejected(
    make_evaluation: MakeRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = make_evaluation("a-1", 1, 0.0), make_evaluation("a-2", 2, 0.0)
    other = make_evaluation("b", 1, 0.0, 5, **{"magrpo.num_generations": 4})
    for number, (paths, message) in enumerate(
        [
            ([first, second], "all runs have the same config except for the seed"),
            ([first, other], "b was evaluated on other tasks than a-1"),
            ([first, tmp_path / "runs" / "b"], "give either runs or folders of evaluations"),
        ]
    ):
        assert main(["compare", *map(str, paths), "--output", str(tmp_path / f"out{number}")]) == 1
        assert message in capsys.readouterr().err


def test_latex_escapes_names() -> None:
    found = compare_methods([method("a_b", np.ones((1, 3))), method("c%", np.ones((1, 3)))], METRICS, seed=1)
    assert r"a\_b (1 seed) & c\% (1 seed) & c\% $-$ a\_b" in latex_table(found)
