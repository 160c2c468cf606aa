"""The folder of a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from marl_ray.core.errors import UserError
from marl_ray.core.ids import Policy
from marl_ray.runs.folder import RunFolder, new_folder


def test_the_names_that_people_know(tmp_path: Path) -> None:
    folder = new_folder(str(tmp_path), "run", "magrpo-toy")
    files = (
        folder.config,
        folder.metrics,
        folder.episodes,
        folder.samples,
        folder.plot,
        folder.error,
        folder.model(Policy((1,))),
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


def test_a_folder_with_nothing_but_its_config_goes(tmp_path: Path) -> None:
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


def test_what_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot be written \(Not a directory\): set output.base_dir"):
        RunFolder(tmp_path / "file" / "run").make()
    with pytest.raises(UserError, match=r"^~nobody-is-called-so/x/r: there is no user ~nobody-is-called-so: "):
        new_folder("~nobody-is-called-so/x", "r", "magrpo-toy")
