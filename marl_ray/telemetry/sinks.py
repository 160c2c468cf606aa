"""Sinks of metric rows and episode records: JSON Lines files, TensorBoard and Weights & Biases."""

from __future__ import annotations

import importlib.util
import json
import math
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from marl_ray.config import Config, to_tree
from marl_ray.core.errors import UserError
from marl_ray.core.files import write_atomically
from marl_ray.telemetry.metrics import EpisodeRecord, MetricRow


class Sink:
    """A destination of metric rows and episode records. By default both are ignored; an exception ends the run."""

    def row(self, row: MetricRow, name: str) -> None:
        """Write a row; `name` is the name of an evaluation, empty for a training step."""

    def episodes(self, step: int, kind: str, records: Sequence[EpisodeRecord]) -> None:
        """Write the episode records of a row; `kind` is train or eval."""

    def close(self) -> None:
        """Flush and close. Nothing is written afterwards."""


class MetricStream:
    """Writes each row and its episode records to all sinks in order."""

    def __init__(self, sinks: Sequence[Sink]) -> None:
        self.sinks = sinks

    def step(self, row: MetricRow, records: Sequence[EpisodeRecord]) -> None:
        """Write a training step."""
        self._write(row, "", "train", records)

    def evaluation(self, row: MetricRow, name: str, records: Sequence[EpisodeRecord]) -> None:
        """Write an evaluation; the console prints `name`."""
        self._write(row, name, "eval", records)

    def close(self) -> None:
        """Close every sink, even if closing one fails."""
        with ExitStack() as stack:
            for sink in reversed(self.sinks):
                stack.callback(sink.close)

    def _write(self, row: MetricRow, name: str, kind: str, records: Sequence[EpisodeRecord]) -> None:
        for sink in self.sinks:
            sink.row(row, name)
            sink.episodes(int(row["step"]), kind, records)


class JsonlSink(Sink):
    """Appends rows to metrics.jsonl and episode records to episodes.jsonl, one JSON object per line.

    Opening the files of a resumed run drops a truncated last line and the rows that the run will write again: training
    steps after `done`, the last step of the checkpoint, and evaluations after `logged`, the last step in the batch log.
    A run with `logged` 0 starts with empty files.
    """

    def __init__(self, metrics: Path, episodes: Path, done: int, logged: int = 0) -> None:
        self._metrics, self._episodes = metrics, episodes
        for path in (metrics, episodes):
            if path.exists():
                _drop_rows_after(path, done, max(done, logged))

    def row(self, row: MetricRow, name: str) -> None:
        """Append a row; numbers that are not finite become null."""
        finite = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()}
        _append(self._metrics, finite)

    def episodes(self, step: int, kind: str, records: Sequence[EpisodeRecord]) -> None:
        for record in records:
            _append(self._episodes, {"step": step, "kind": kind} | record)


def require_trackers(config: Config) -> None:
    """Raise UserError if the config asks for a tracker whose package is not installed."""
    if config.wandb.project and importlib.util.find_spec("wandb") is None:
        raise UserError("wandb.project is set but the package wandb is missing: pip install wandb")
    if config.output.tensorboard and importlib.util.find_spec("tensorboard") is None:
        raise UserError("output.tensorboard is set but the package tensorboard is missing: pip install tensorboard")


class TensorBoardSink(Sink):
    """Writes every number of a row as a scalar at its step. A resumed run rewrites the events from metrics.jsonl."""

    def __init__(self, folder: Path, metrics: Path) -> None:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        shutil.rmtree(folder, ignore_errors=True)
        self.writer = EventFileWriter(str(folder))
        for row in read_rows(metrics) if metrics.exists() else ():
            self.row(row, "")

    def row(self, row: MetricRow, name: str) -> None:
        """Write one event, without null (a number that is not finite in metrics.jsonl)."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [
            Summary.Value(tag=key, simple_value=value)
            for key, value in row.items()
            if key != "step" and isinstance(value, int | float)
        ]
        self.writer.add_event(Event(wall_time=time.time(), step=int(row["step"]), summary=Summary(value=values)))
        self.writer.flush()

    def close(self) -> None:
        self.writer.close()


class WandbSink(Sink):
    """Logs rows to a Weights & Biases run."""

    def __init__(self, config: Config, run_dir: Path) -> None:
        import wandb

        self.run = wandb.init(
            project=config.wandb.project,
            entity=config.wandb.entity,
            name=config.wandb.name or run_dir.name,
            dir=config.wandb.dir or str(run_dir),
            tags=list(config.wandb.tags),
            config=to_tree(config),
        )

    def row(self, row: MetricRow, name: str) -> None:
        self.run.log(row, step=int(row["step"]))

    def close(self) -> None:
        self.run.finish()


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the objects of a JSON Lines file of a run, without a last line that a crash truncated.

    Raises UserError for any other damaged line.
    """
    *lines, last = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines, start=1):
        row = _parse(line)
        if row is None:
            raise UserError(f"{path} is damaged in line {number}: delete that line")
        yield row
    if (row := _parse(last)) is not None:
        yield row


def is_evaluation(row: dict[str, Any]) -> bool:
    """Return True if an object of metrics.jsonl or episodes.jsonl belongs to an evaluation."""
    return row.get("kind") == "eval" or "eval/episodes" in row


def _parse(line: bytes) -> dict[str, Any] | None:
    """Return the object of a line; None if the line is not an object with an integer step."""
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) and type(row.get("step")) is int else None


def _drop_rows_after(path: Path, done: int, logged: int) -> None:
    """Rewrite the file atomically with training steps up to `done` and evaluations up to `logged`."""
    rows = [row for row in read_rows(path) if logged and row["step"] <= (logged if is_evaluation(row) else done)]
    write_atomically(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode())


def _append(path: Path, row: dict[str, Any]) -> None:
    with path.open("a") as file:
        file.write(json.dumps(row, ensure_ascii=False) + "\n")
