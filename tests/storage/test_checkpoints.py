"""Checkpoints are atomic, and later damage is named."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from marl_ray.core.errors import UserError
from marl_ray.core.ids import PolicyId
from marl_ray.core.state import TrainerState
from marl_ray.storage.checkpoints import Checkpoints


def state(step: int) -> TrainerState:
    return TrainerState(step, step * 10, step, step * 3)


def commit(checkpoints: Checkpoints, step: int, keep: int = 2) -> Path:
    """Commit a checkpoint of two agents with one file each."""
    for agent in (0, 1):
        (checkpoints.begin(step, PolicyId((agent,))) / "weights").write_text("x")
    return checkpoints.commit(state(step), keep)


def test_an_incomplete_checkpoint_is_ignored(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    assert checkpoints.latest() is None
    committed = commit(checkpoints, 3)
    (checkpoints.begin(4, PolicyId((0,))) / "half").write_text("x")
    assert checkpoints.latest() == (committed, state(3))
    assert committed.name == "step_000003"


def test_old_checkpoints_are_deleted_and_a_retry_starts_with_an_empty_folder(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    for step in (5, 10, 15):
        commit(checkpoints, step)
    assert [p.name for p in checkpoints.all()] == ["step_000010", "step_000015"]
    (checkpoints.begin(20, PolicyId((1,))) / "leftover").write_text("x")
    assert list(checkpoints.begin(20, PolicyId((1,))).iterdir()) == []


def test_a_half_deleted_checkpoint_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints = Checkpoints(tmp_path)
    commit(checkpoints, 5)
    removed, rmtree = [], shutil.rmtree

    def killed(path: Path, **options: Any) -> None:
        if "step_000005" in path.name and path.exists():
            removed.append(path)
            raise KeyboardInterrupt
        rmtree(path, **options)

    commit(checkpoints, 10)
    monkeypatch.setattr(shutil, "rmtree", killed)
    with pytest.raises(KeyboardInterrupt):
        commit(checkpoints, 15)
    assert removed
    assert [p.name for p in checkpoints.all()] == ["step_000010", "step_000015"]


def test_other_folders_are_ignored(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    assert checkpoints.all() == []
    commit(checkpoints, 3)
    for stray in ("step_12", "step_final", "step_000012.bak", "step_000012", "lost+found"):
        (checkpoints.folder / stray).mkdir()
    (checkpoints.folder / "step_000013").write_text("")
    assert [p.name for p in checkpoints.all()] == ["step_000003"]
    assert commit(checkpoints, 12).is_dir(), "an empty folder is replaced"


DAMAGED = [
    "",
    "{",
    "[1]",
    "null",
    '{"step": 3}',
    '{"step": 3, "env_steps": 1.5, "learned": 1}',
    '{"step": 3, "env_steps": -1, "learned": 1}',
    '{"step": 4, "env_steps": 1, "learned": 1}',
    '{"step": 3, "env_steps": 1, "learned": 1, "files": [1]}',
]


@pytest.mark.parametrize("text", DAMAGED)
def test_a_damaged_state_is_named(tmp_path: Path, text: str) -> None:
    checkpoints = Checkpoints(tmp_path)
    path = commit(checkpoints, 3)
    (path / "trainer.json").write_text(text)
    with pytest.raises(
        UserError, match=rf"^{path}/trainer\.json is damaged: copy it again, or delete {path} to resume"
    ):
        checkpoints.latest()


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    path = commit(checkpoints, 3)
    (path / "agent_1" / "weights").unlink()
    with pytest.raises(UserError, match=rf"^{path}/agent_1/weights is missing: copy it again, or delete {path} to"):
        checkpoints.latest()


def test_a_truncated_file_is_named(tmp_path: Path) -> None:
    # As after a power failure, when only the name of the file was on disk.
    checkpoints = Checkpoints(tmp_path)
    path = commit(checkpoints, 3)
    (path / "agent_1" / "weights").write_text("")
    with pytest.raises(
        UserError, match=rf"^{path}/agent_1/weights has 0 bytes of 1: copy it again, or delete {path} to"
    ):
        checkpoints.latest()


def test_a_checkpoint_is_synced_before_and_after_the_rename(tmp_path: Path, synced: list[Path]) -> None:
    checkpoints = Checkpoints(tmp_path)
    hidden = checkpoints.begin(3, PolicyId((0,))).parent
    commit(checkpoints, 3)
    assert [path.name for path in synced] == [".trainer.json", hidden.name, tmp_path.name]


def test_checkpoints_of_older_versions_are_read(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    path = commit(checkpoints, 3)
    assert list(json.loads((path / "trainer.json").read_text())) == ["step", "env_steps", "learned", "draws", "files"]
    (path / "trainer.json").write_text(json.dumps({"step": 3, "env_steps": 30, "learned": 3, "weight_versions": [3]}))
    assert checkpoints.latest() == (path, TrainerState(3, 30, 3))
    counts = {"step": 3, "env_steps": 30, "learned": 3, "draws": 9}
    (path / "trainer.json").write_text(json.dumps(counts | {"files": ["agent_0/weights"]}))
    assert checkpoints.latest() == (path, state(3)), "file names without sizes"
    (path / "agent_0" / "weights").unlink()
    with pytest.raises(UserError, match=rf"^{path}/agent_0/weights is missing"):
        checkpoints.latest()
