"""A team is distilled into another team, and into one model, from the files of a run."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from marl_ray.toy import REVISING_BASE_PATH
from tests.end_to_end.helpers import rows, train, without_times
from tests.factories import ROOT

pytestmark = pytest.mark.slow
STEPS = 4


def distil(folder: Path, name: str, *overrides: str) -> list[dict]:
    """Return the rows of a run whose teachers are two models of another training."""
    teachers = [shutil.copytree(REVISING_BASE_PATH, folder / f"{name}_teacher_{agent}") for agent in (0, 1)]
    result = train(
        *("--config", str(ROOT / "configs" / "toy_distillation.yaml"), "--override"),
        *(f"agents.{agent}.reference_model={teacher}" for agent, teacher in enumerate(teachers)),
        *("magrpo.num_turns=1", "magrpo.learning_rate=2e-3", "dataset.eval_split=null"),
        *(f"output.base_dir={folder}", f"output.run_name={name}", f"magrpo.max_steps={STEPS}"),
        *overrides,
    )
    assert result.returncode == 0, result.stderr
    return rows(folder / name, "step")


def test_students_approach_the_teacher_of_their_role(tmp_path: Path) -> None:
    found = distil(tmp_path, "team", "magrpo.lr_scheduler=constant")
    for agent in (0, 1):
        assert found[-1][f"agent_{agent}/reference_kl"] < found[0][f"agent_{agent}/reference_kl"]


@pytest.mark.nightly
def test_a_resumed_distillation_equals_an_undisturbed_one(tmp_path: Path) -> None:
    found = distil(tmp_path, "whole", "magrpo.lr_scheduler=constant")
    first = f"magrpo.max_steps={STEPS // 2}"
    distil(tmp_path, "halves", "magrpo.lr_scheduler=constant", first)
    result = train("--resume", str(tmp_path / "halves"), "--override", f"magrpo.max_steps={STEPS}")
    assert result.returncode == 0, result.stderr
    assert list(map(without_times, rows(tmp_path / "halves", "step"))) == list(map(without_times, found))


@pytest.mark.nightly
def test_one_policy_learns_from_the_teachers_of_two_roles(tmp_path: Path) -> None:
    found = distil(tmp_path, "one", "magrpo.policy=0")
    assert found[-1]["policy_0/reference_kl"] < found[0]["policy_0/reference_kl"]
