"""The state of a run, read from its folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from marl_ray.core.errors import UserError
from marl_ray.plugins.report.run_data import read_config, read_metric_rows, run_data
from marl_ray.plugins.report.run_state import KILLED, RunState
from marl_ray.storage.run_folder import RunFolder
from marl_ray.storage.run_lock import hold_lock
from tests.plugins.report.report_runs import add_step

CONFIG = """magrpo: {num_train_epochs: 2, rollout_buffer_size: 4, eval_interval: 2}
model: {name: 'bundled:toy-base'}
dataset: {name: 'bundled:toy', eval_split: eval}
"""
LOG = "2026-01-02 03:04:05,678 INFO marl_ray.launch: starting 2 generators\n2026-01-02 03:04:07,000 WARNING x: slow\n"


def make_run(path: Path, steps: int = 0) -> RunFolder:
    """Write a run of 8 tasks, so 4 steps in all, of which some are done."""
    run = RunFolder(path)
    run.make()
    run.config.write_text(CONFIG)
    run.tasks.write_text(json.dumps({"train": {"tasks": 8, "digest": ""}}))
    run.log_file.write_text(LOG)
    for step in range(1, steps + 1):
        add_step(run, step, **{"time/step": 10.0})
    return run


def add_evaluation(run: RunFolder, step: int) -> None:
    with run.metrics.open("a") as file:
        file.write(json.dumps({"step": step, "env_steps": 8, "eval/episodes": 4, "time/eval": 3.0}) + "\n")


def state_of(run: RunFolder) -> RunState:
    return RunState.read(run, read_config(run), read_metric_rows(run))


def test_a_run_starts_while_its_process_has_no_row(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    with hold_lock(run.lock):
        state = state_of(run)
        assert run_data(run)["state"]["kind"] == "starting"
    assert (state.kind, state.step, state.total) == ("starting", 0, 4)
    assert state.log == ["03:04:05 starting 2 generators", "03:04:07 warning: slow"]
    assert state.started is not None


def test_a_running_run_has_time_left(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=1)
    add_evaluation(run, 0)
    with hold_lock(run.lock):
        state = state_of(run)
    # Three more steps, and evaluations after steps 2 and 4.
    assert (state.kind, state.step, state.seconds_left) == ("running", 1, 3 * 10.0 + 2 * 3.0)


def test_a_run_is_finished_after_its_last_evaluation(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=4)
    assert state_of(run).kind == "stopped"
    add_evaluation(run, 4)
    assert state_of(run).kind == "finished"


def test_a_run_that_ended_early_is_stopped(tmp_path: Path) -> None:
    state = state_of(make_run(tmp_path / "run", steps=3))
    assert (state.kind, state.step, state.cause) == ("stopped", 3, "")


def test_a_failed_run_states_its_cause(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=3)
    run.error.write_text("Traceback (most recent call last):\n  ...\nValueError: <b>bad</b>\n")
    state = state_of(run)
    assert (state.kind, state.cause) == ("failed", "ValueError: <b>bad</b>")
    assert state.traceback.startswith("Traceback")
    run.error.write_text("generator 0 of agent 1 has ended\n")
    state = state_of(run)
    assert (state.kind, state.cause, state.traceback) == ("failed", "generator 0 of agent 1 has ended", "")
    with hold_lock(run.lock):
        assert state_of(run).kind == "running", "resumed"


def test_a_killed_run_has_failed(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=3)
    run.lock.write_text("process 1 on here\n")  # which a process that ends in order deletes
    state = state_of(run)
    assert (state.kind, state.cause) == ("failed", KILLED)


def test_a_folder_without_a_run_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not a run folder"):
        run_data(RunFolder(tmp_path))
