"""The folder and the messages of a run that fails, is stopped, or is resumed."""

from __future__ import annotations

import errno
import json
import os
import shutil
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
from safetensors import SafetensorError

from marl_ray.actors.handle import ActorFailed
from marl_ray.cli.train import train_main
from marl_ray.config import load
from marl_ray.core.errors import UserError
from marl_ray.core.ids import PolicyId
from marl_ray.core.state import TrainerState
from marl_ray.launch import run
from marl_ray.storage.resume import SavedRun
from marl_ray.storage.run_folder import RunFolder
from marl_ray.storage.run_lock import hold_lock
from marl_ray.telemetry.timing import StartupTimer
from tests.storage.logged_batches import synthetic

QUICKSTART = Path(__file__).parents[2] / "configs" / "quickstart.yaml"


@pytest.fixture
def ending(monkeypatch: pytest.MonkeyPatch) -> list[BaseException]:
    """The exception with which the session ends. Ray is not started."""
    ends: list[BaseException] = []

    class TrainingSession:
        def __init__(
            self, config: object, inputs: object, folder: RunFolder, resume_state: object, startup: StartupTimer
        ) -> None:
            self.folder, self.startup = folder, startup

        async def run(self) -> None:
            if not isinstance(ends[0], UserError) and not self.folder.metrics.exists():
                self.folder.metrics.write_text('{"step": 3}\n')
            raise ends[0]

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(run, "TrainingSession", TrainingSession)
    monkeypatch.setattr(run, "connect", lambda verbose: "no Ray")
    monkeypatch.setattr(run, "watch_head", lambda lost: nullcontext())
    return ends


def arguments(base: Path, *overrides: str) -> list[str]:
    return ["--config", str(QUICKSTART), "--override", f"output.base_dir={base}", "output.run_name=r", *overrides]


def test_the_traceback_of_a_bug_is_written(ending: list[BaseException], tmp_path: Path) -> None:
    ending.append(ValueError("list index"))
    with pytest.raises(ValueError, match="list index") as bug:
        train_main("magrpo", arguments(tmp_path))
    kept = tmp_path / "r" / "error.txt"
    assert bug.value.__notes__ == [f"Unexpected error. Please report it and attach this file: {kept}"]
    assert kept.read_text().startswith("Traceback (most recent call last):\n")
    assert "in _on_ray" in kept.read_text()
    assert kept.read_text().endswith("ValueError: list index\n")


def test_the_message_of_an_expected_error_is_kept(ending: list[BaseException], tmp_path: Path) -> None:
    ending.append(KeyboardInterrupt())
    assert train_main("magrpo", arguments(tmp_path)) == 130
    ending[0] = UserError("three steps in a row were not finite")
    assert train_main("magrpo", ["--resume", str(tmp_path / "r")]) == 1
    assert (tmp_path / "r" / "error.txt").read_text(encoding="utf-8") == "three steps in a row were not finite\n"


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device", "metrics.jsonl"),
        SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"),
    ],
)
def test_a_full_disk_is_named(
    ending: list[BaseException], error: Exception, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # In this process, or in a learner, whose error is the cause of Ray's error and of ActorFailed.
    remote, failed = RuntimeError("of Ray"), ActorFailed("agent 0 learner failed in save")
    remote.cause, failed.__cause__ = error, remote  # type: ignore[attr-defined]
    for number, end in enumerate((error, failed)):
        ending[:] = [end]
        folder = RunFolder(tmp_path / f"r{number}")
        hidden = [folder.checkpoints.begin(3, PolicyId((0,))), folder.models / ".agent_0"]
        hidden[1].mkdir(parents=True)
        assert train_main("magrpo", arguments(tmp_path, f"output.run_name=r{number}")) == 1
        last = capsys.readouterr().err.splitlines()[-1]
        assert last.startswith(f"error: {folder} cannot be written (No space left on device): free space there")
        assert last.endswith(f"--resume {folder} continues")
        assert not any(path.exists() for path in hidden)


def test_a_file_elsewhere_is_named(
    ending: list[BaseException], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    denied, remote = PermissionError(errno.EACCES, "Permission denied", "/cache/model"), RuntimeError("of Ray")
    failed = ActorFailed(f"agent 0 generator (process 3 on 10.0.0.2) failed in start: {denied}")
    remote.cause, failed.__cause__ = denied, remote  # type: ignore[attr-defined]
    ending.append(failed)
    assert train_main("magrpo", arguments(tmp_path)) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith(f"error: {failed}; --resume")
    assert "'/cache/model'" in last


def test_leftovers_of_a_killed_driver_are_removed_before_the_first_step(
    ending: list[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # An incomplete checkpoint would otherwise become part of the next checkpoint of the same step.
    ending.append(KeyboardInterrupt())
    folder = RunFolder(tmp_path / "r")
    assert train_main("magrpo", arguments(tmp_path)) == 130
    stray = folder.checkpoints.folder / ".step_000004" / "trainer.json"
    stray.parent.mkdir(parents=True)
    stray.write_text("{}")

    existed: list[bool] = []

    class CheckingSession(run.TrainingSession):
        async def run(self) -> None:
            existed.append(stray.exists())
            await super().run()

    monkeypatch.setattr(run, "TrainingSession", CheckingSession)
    assert train_main("magrpo", ["--resume", str(folder)]) == 130
    assert existed == [False]


def test_a_bug_on_a_full_disk_is_reported_as_a_bug(
    ending: list[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(total=1, used=1, free=0))
    ending.append(RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 704 vs 598"))
    with pytest.raises(RuntimeError, match="unexpected pos"):
        train_main("magrpo", arguments(tmp_path))


def test_a_user_error_is_one_line_and_leaves_no_folder(
    ending: list[BaseException], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ending.append(UserError("the cluster is too small"))
    assert train_main("magrpo", arguments(tmp_path)) == 1
    assert capsys.readouterr().err.endswith("\nerror: the cluster is too small\n")
    assert list(tmp_path.iterdir()) == []


def test_a_stopped_run_says_where_it_would_continue(
    ending: list[BaseException], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ending.append(KeyboardInterrupt())
    folder = RunFolder(tmp_path / "r")
    assert train_main("magrpo", arguments(tmp_path)) == 130
    assert capsys.readouterr().err.endswith(f"stopped at step 3; --resume {folder} continues from the start\n")
    for agent in (0, 1):
        folder.checkpoints.begin(2, PolicyId((agent,)))
    folder.checkpoints.commit(TrainerState(2, 16, 2), keep=1)
    folder.error.write_text("of an earlier end")
    for step in (2, 4):
        folder.log.append(synthetic(step, agents=2, group_count=1, size=1, tokens=1, prompt=1))
    assert train_main("magrpo", ["--resume", str(folder)]) == 130
    assert capsys.readouterr().err.endswith(f"stopped at step 3; --resume {folder} continues from step 3\n")
    assert not folder.error.exists()
    assert not folder.lock.exists()


def test_a_stopped_run_is_plotted(ending: list[BaseException], tmp_path: Path) -> None:
    ending.append(KeyboardInterrupt())
    assert train_main("magrpo", arguments(tmp_path)) == 130
    plot = RunFolder(tmp_path / "r").plot
    assert not plot.exists(), "no step to plot"
    row = {"step": 3, "env_steps": 24, "rollout/episodes": 2, "turn_1/reward_mean": 1.5}
    RunFolder(tmp_path / "r").metrics.write_text(json.dumps(row) + "\n")
    assert train_main("magrpo", ["--resume", str(tmp_path / "r")]) == 130
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_a_run_stopped_before_the_first_step_leaves_no_folder(
    ending: list[BaseException], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(verbose: bool) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "connect", stopped)
    assert train_main("magrpo", arguments(tmp_path)) == 130
    assert capsys.readouterr().err.endswith("stopped before the first step\n")
    assert list(tmp_path.iterdir()) == []


def test_a_locked_run_is_not_changed(
    ending: list[BaseException], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ending.append(KeyboardInterrupt())
    assert train_main("magrpo", arguments(tmp_path)) == 130
    folder = RunFolder(tmp_path / "r")
    before = {path: path.read_bytes() for path in folder.path.iterdir()}
    capsys.readouterr()
    with hold_lock(folder.lock):
        assert train_main("magrpo", ["--resume", str(folder), "--override", "magrpo.max_steps=9"]) == 1
        assert f"error: {folder} is being written by process {os.getpid()} on" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in folder.path.iterdir()} == before


def test_a_requeued_run_is_resumed(
    ending: list[BaseException], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # The same command resumes the run each time.
    ending.append(KeyboardInterrupt())
    command = arguments(tmp_path, "output.resume=auto", "output.save_final_model=false", "dataset.eval_split=null")
    command += ["magrpo.max_steps=4"]
    folder = RunFolder(tmp_path / "r")
    for done in (0, 2):
        for agent in (0, 1):
            folder.checkpoints.begin(done, PolicyId((agent,)))
        folder.checkpoints.commit(TrainerState(done, 16 * done, done), keep=1)
        assert train_main("magrpo", command) == 130
        assert capsys.readouterr().err.endswith("continues from " + (f"step {done}\n" if done else "the start\n"))
    assert train_main("magrpo", [*command, "seed=7"]) == 1
    assert "a resumed run keeps its seed" in capsys.readouterr().err
    for agent in (0, 1):
        folder.checkpoints.begin(4, PolicyId((agent,)))
    folder.checkpoints.commit(TrainerState(4, 64, 4), keep=1)
    assert train_main("magrpo", command) == 0
    assert capsys.readouterr().err.startswith(f"{folder} has done all of its 4 steps: to go on, raise")
    assert train_main("magrpo", [*command, "--dry-run"]) == 0
    assert capsys.readouterr().err.startswith(f"{folder} has done all of its 4 steps: to go on, raise")
    assert train_main("grpo", ["--resume", str(folder)]) == 1


def test_a_folder_with_a_run_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "config.yaml").write_text("seed: 1\n")
    assert train_main("magrpo", arguments(tmp_path)) == 1
    assert f"{tmp_path / 'r'} already contains a run: resume it with --resume" in capsys.readouterr().err
    assert train_main("magrpo", ["--resume", str(tmp_path / "r")]) == 1
    assert capsys.readouterr().err == f"error: {tmp_path / 'r' / 'config.yaml'} has no section magrpo or grpo\n"


def test_a_saved_config_is_read_once(tmp_path: Path) -> None:
    # The resumed config and the config that it is compared with come from one read.
    (tmp_path / "config.yaml").write_text(QUICKSTART.read_text())
    saved = SavedRun.read(tmp_path)
    (tmp_path / "config.yaml").unlink()
    assert saved.algorithm == "magrpo"
    assert saved.config() == load(QUICKSTART, "magrpo")
    assert saved.config({"magrpo.max_steps": 7}).training.max_steps == 7
    assert saved.config().training.max_steps == load(QUICKSTART, "magrpo").training.max_steps
