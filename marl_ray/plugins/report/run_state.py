"""The state of a run, read from its folder: starting, running, finished, stopped or failed."""

from __future__ import annotations

import json
import re
import statistics
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from marl_ray.config.budget import training_budget
from marl_ray.config.schema import Config
from marl_ray.results.diagnostics import Rows
from marl_ray.storage.run_folder import RunFolder
from marl_ray.storage.run_lock import lock_holder
from marl_ray.telemetry.console_sink import ETA_WINDOW
from marl_ray.telemetry.sinks import is_evaluation

LOG_LINE = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d),\d{3} ([A-Z]+) \S+: (.*)")
"""A line of run.log: time, level and message."""
SHOWN_LOG_LINES = 8
KILLED = "the process ended without a last message: it was killed, or its machine stopped"
StateKind = Literal["starting", "running", "finished", "stopped", "failed"]


@dataclass(frozen=True, slots=True)
class RunState:
    """The state of a run and its progress. Times are in seconds since the epoch."""

    kind: StateKind
    step: int
    total: int | None
    """Number of steps of the whole run; None if it is unknown."""
    cause: str
    """Why the run failed, in one line."""
    traceback: str
    started: float | None
    updated: float | None
    """Time of the newest row, or of the newest log message of a run without rows."""
    seconds_left: float | None
    """Estimate for the rest of a running run."""
    log: list[str]
    """The newest messages of the log."""

    @classmethod
    def read(cls, folder: RunFolder, config: Config | None, rows: Rows) -> RunState:
        """Read the state of a run whose metric rows are `rows`."""
        step = max((row["step"] for row in rows), default=0)
        total = _total_steps(folder, config)
        started, log = _read_log(folder.log_file)
        traceback = ""
        if folder.error.exists():
            traceback = folder.error.read_text(errors="replace", encoding="utf-8").strip()
        kind: StateKind
        cause = ""
        if lock_holder(folder.lock) is not None:
            kind = "running" if rows else "starting"
            traceback = ""  # of an earlier process, until the new one deletes it
        elif traceback:
            kind = "failed"
            cause = traceback.splitlines()[-1]
            if cause == traceback:
                traceback = ""  # an expected error has one line
        elif folder.lock.exists():
            # A process that ends in order deletes its lock.
            kind = "failed"
            cause = KILLED
        elif _is_complete(folder, config, rows, step, total):
            kind = "finished"
        else:
            kind = "stopped"
        left = None
        if kind == "running" and total is not None:
            left = _seconds_left(config, rows, total - step)
        newest = folder.metrics if rows else folder.log_file
        updated = newest.stat().st_mtime if newest.exists() else None
        return cls(kind, step, total, cause, traceback, started, updated, left, log)


def _total_steps(folder: RunFolder, config: Config | None) -> int | None:
    if config is None:
        return None
    try:
        tasks = json.loads(folder.tasks.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        tasks = {}
    train = tasks.get(config.dataset.train_split)
    if train is None:
        return config.training.max_steps
    return training_budget(config, train["tasks"]).total_steps


def _is_complete(folder: RunFolder, config: Config | None, rows: Rows, step: int, total: int | None) -> bool:
    if total is not None:
        evaluated = any(is_evaluation(row) and row["step"] == step for row in rows)
        needs_evaluation = config is not None and bool(config.dataset.eval_split)
        return step >= total and (evaluated or not needs_evaluation)
    # Without its number of steps, a run is complete once it has exported its models.
    return folder.models.is_dir() and any(folder.models.iterdir())


def _seconds_left(config: Config | None, rows: Rows, steps: int) -> float | None:
    """Return the time of `steps` more steps and of their evaluations, from the mean of the newest ones."""
    recent = deque((row["time/step"] for row in rows if row.get("time/step")), maxlen=ETA_WINDOW)
    if not recent:
        return None
    seconds = statistics.fmean(recent) * steps
    evaluations = [row["time/eval"] for row in rows if row.get("time/eval")]
    if evaluations and config is not None:
        interval = config.training.eval_interval
        last = rows[-1]["step"]
        # Evaluations follow every `interval` steps and the last step.
        due = 1
        if interval:
            due += (last + steps - 1) // interval - last // interval
        seconds += due * evaluations[-1]
    return seconds


def _read_log(file: Path) -> tuple[float | None, list[str]]:
    """Return the time of the first message, and the newest messages."""
    if not file.exists():
        return None, []
    started = None
    newest: deque[str] = deque(maxlen=SHOWN_LOG_LINES)
    for line in file.read_text(errors="replace", encoding="utf-8").splitlines():
        match = LOG_LINE.fullmatch(line)
        if match is None:
            continue  # a further line of a message
        when = datetime.strptime(match[1], "%Y-%m-%d %H:%M:%S")
        if started is None:
            started = when.timestamp()
        level = "" if match[2] == "INFO" else f"{match[2].lower()}: "
        newest.append(f"{when:%H:%M:%S} {level}{match[3]}")
    return started, list(newest)


def state_data(state: RunState) -> Mapping[str, Any]:
    """Return the state as data of the page."""
    return {name: getattr(state, name) for name in RunState.__slots__}
