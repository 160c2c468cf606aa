"""The folder of a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from marl_ray.core.errors import UserError
from marl_ray.core.ids import PolicyId
from marl_ray.core.state import TrainerState
from marl_ray.storage.run_folder import RunFolder, new_folder


def test_file_names_are_stable(tmp_path: Path) -> None:
    folder = new_folder(str(tmp_path), "run", "magrpo-toy")
    files = (
        folder.config,
        folder.metrics,
        folder.episodes,
        folder.samples,
        folder.plot,
        folder.error,
        folder.model(PolicyId((1,))),
    )
    assert [str(path.relative_to(tmp_path / "run")) for path in files] == [
        "config.yaml",
        "metrics.jsonl",
        "episodes.jsonl",
        "sample_episodes.txt",
        "returns.png",
        "error.txt",
        "models/agent_1",
    ]
    assert folder.checkpoints.folder == tmp_path / "run" / "checkpoints"
    assert folder.log.folder == tmp_path / "run" / "batches"
    assert new_folder(str(tmp_path), None, "magrpo-toy").path.name.startswith("magrpo-toy-2")


def test_a_folder_with_only_its_config_is_deleted(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "a" / "b")
    folder.make()
    folder.config.write_text("seed: 1\n")
    folder.lock.write_text("")
    folder.metrics.write_text("")
    folder.remove_if_empty()
    assert folder.config.exists()
    folder.metrics.unlink()
    folder.remove_if_empty()
    assert not folder.path.exists()


def test_a_renamed_lock_file_does_not_hide_the_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # On NFS, deleting an open file renames it.
    folder = RunFolder(tmp_path / "a")
    folder.make()
    for file in (folder.config, folder.machine, folder.log_file, folder.lock):
        file.write_text("")

    def rename(path: Path, missing_ok: bool) -> None:
        if path.exists():
            path.rename(path.with_name(".nfs01"))

    monkeypatch.setattr(Path, "unlink", rename)
    folder.remove_if_empty()
    assert [path.name for path in folder.path.iterdir()] == [".nfs01"]


def test_metric_rows_are_synced_before_the_checkpoint_that_covers_them(tmp_path: Path, synced: list[Path]) -> None:
    folder = RunFolder(tmp_path)
    (folder.checkpoints.begin(2, PolicyId((0,))) / "weights").write_text("x")
    for file in (folder.metrics, folder.episodes):
        file.write_text("{}")
    folder.commit(TrainerState(2, 16, 2), keep=1)
    assert synced[:2] == [folder.metrics, folder.episodes]
    assert folder.checkpoints.folder in synced[2:]


def test_models_state_their_number_of_steps(tmp_path: Path) -> None:
    folder, policies = RunFolder(tmp_path), (PolicyId((0,)), PolicyId((1,)))
    for policy, steps in zip(policies, (200, 100), strict=True):
        assert folder.trained_steps(policies) is None
        folder.model(policy).mkdir(parents=True)
        (folder.model(policy) / "trained.json").write_text(f'{{"steps": {steps}}}')
    assert folder.trained_steps(policies) == 100


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot be written \(Not a directory\): set output.base_dir"):
        RunFolder(tmp_path / "file" / "run").make()
    with pytest.raises(UserError, match=r"^~no-such-user/x/r: there is no user ~no-such-user: "):
        new_folder("~no-such-user/x", "r", "magrpo-toy")
