"""Files of an evaluation that is stopped or fails. Ray is not started."""

from __future__ import annotations

from pathlib import Path

import pytest

from marl_ray.cli.main import main
from marl_ray.core.errors import Terminated, UserError
from marl_ray.evaluation import evaluate as module
from marl_ray.evaluation.evaluate import EvaluationPlan, OnModelDone
from tests.factories import make_episode, make_node

QUICKSTART = Path(__file__).parents[2] / "configs" / "quickstart.yaml"


def ended(monkeypatch: pytest.MonkeyPatch, output: Path, end: BaseException, measured: bool) -> int:
    """Return the exit code of an evaluation that `end` stops, after or before its model was evaluated."""

    def sample_episodes(plan: EvaluationPlan, on_model_done: OnModelDone) -> None:
        if measured:
            on_model_done(plan.models[0], [[make_episode(make_node(0, [1.0]))]], [{"tokens/all": 4.0}])
        raise end

    monkeypatch.setattr(module, "sample_episodes", sample_episodes)
    return main(
        ["eval", "--config", str(QUICKSTART), "--model", "base", "--split", "eval[:1]", "--output", str(output)]
    )


@pytest.mark.parametrize(("end", "code"), [(KeyboardInterrupt(), 130), (Terminated(), 143)])
def test_results_of_evaluated_models_are_kept(
    end: BaseException, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ended(monkeypatch, tmp_path / "some", end, measured=True) == code
    tasks = tmp_path / "some" / "tasks.jsonl"
    assert capsys.readouterr().err.endswith(f"stopped: 1 of 1 model evaluated; their tasks are in {tasks}\n")
    assert len(tasks.read_text().splitlines()) == 1
    assert ended(monkeypatch, tmp_path / "none", end, measured=False) == code
    assert capsys.readouterr().err.endswith("stopped: 0 of 1 model evaluated\n")
    assert not (tmp_path / "none").exists()


def test_an_evaluation_that_cannot_start_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ended(monkeypatch, tmp_path / "e", UserError("the cluster is too small"), measured=False) == 1
    assert capsys.readouterr().err.endswith("error: the cluster is too small\n")
    assert not (tmp_path / "e").exists()
