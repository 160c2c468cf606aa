"""Checkpoints are whole or absent."""

from __future__ import annotations

from pathlib import Path

import pytest

from marl_ray.core.errors import UserError
from marl_ray.core.state import TrainerState
from marl_ray.runs.checkpoints import Checkpoints


def state(step: int) -> TrainerState:
    return TrainerState(step, step * 10, step)


def test_an_unfinished_checkpoint_is_not_seen(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.commit(checkpoints.begin(3, 2), state(3), keep=2)
    unfinished = checkpoints.begin(4, 2)
    (checkpoints.agent_folder(unfinished, 0) / "half").write_text("x")
    path, found = checkpoints.latest()
    assert path.name == "step_000003"
    assert found == state(3)


def test_old_ones_are_deleted_and_a_retry_starts_clean(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    for step in (5, 10, 15):
        path = checkpoints.begin(step, 1)
        assert list(checkpoints.agent_folder(path, 0).iterdir()) == []
        checkpoints.commit(path, state(step), keep=2)
    assert [p.name for p in checkpoints.all()] == ["step_000010", "step_000015"]
    (checkpoints.begin(20, 1) / "leftover").write_text("x")
    assert not (checkpoints.begin(20, 1) / "leftover").exists()


def test_nothing_to_resume_is_said(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no checkpoint to resume from"):
        Checkpoints(tmp_path).latest()
