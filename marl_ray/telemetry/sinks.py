"""Sinks of metric rows and episode records: the stream that feeds them, and the JSON Lines files of the run folder."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

from marl_ray.core.errors import UserError
from marl_ray.core.files import write_atomically
from marl_ray.telemetry.episode_records import EpisodeRecord
from marl_ray.telemetry.metrics import MetricRow


class Sink(Protocol):
    """A destination of metric rows and episode records. An exception in a sink ends the run."""

    def row(self, row: MetricRow, name: str) -> None:
        """Take a row; `name` is the name of an evaluation, empty for a training step."""

    def episodes(self, step: int, kind: str, records: Sequence[EpisodeRecord]) -> None:
        """Take the episode records of a row; `kind` is train or eval."""

    def close(self) -> None:
        """Flush and close. Nothing is written afterwards."""


class MetricStream:
    """Passes each row and its episode records to all sinks in order."""

    def __init__(self, sinks: Sequence[Sink]) -> None:
        self.sinks = sinks

    def step(self, row: MetricRow, records: Sequence[EpisodeRecord]) -> None:
        """Write a training step."""
        self._write(row, "", "train", records)

    def evaluation(self, row: MetricRow, name: str, records: Sequence[EpisodeRecord]) -> None:
        """Write an evaluation; consoles show `name`."""
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


class JsonlSink:
    """Appends rows to metrics.jsonl and episode records to episodes.jsonl, one JSON object per line.

    Opening the files of a resumed run drops a truncated last line and the rows that the run will write again: training
    steps after `done`, the last step of the checkpoint, and evaluations after `logged`, the last step in the batch log.
    A run with `logged` 0 starts with empty files.
    """

    def __init__(self, metrics: Path, episodes: Path, done: int, logged: int = 0) -> None:
        self._metrics = metrics
        self._episodes = episodes
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

    def close(self) -> None:
        """Do nothing: files are open only during a write."""


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
    """Return whether an object of metrics.jsonl or episodes.jsonl belongs to an evaluation."""
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
