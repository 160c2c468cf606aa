"""Sinks of metric rows and episode records, and the JSON Lines files of a run folder, which are the truth.

`marl_ray.telemetry.background_sink` sends the rows of these files to trackers (`marl_ray.telemetry.trackers`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from marl_ray.core.errors import UserError
from marl_ray.core.files import write_atomically
from marl_ray.telemetry.episode_records import EpisodeRecord

if TYPE_CHECKING:
    # Commands that only read rows start without the config, which the module of metrics imports.
    from marl_ray.telemetry.metrics import MetricRow

Span = tuple[str, str, int, float, float]
"""A part of a run's timeline: track, name, step (from 1), begin and end in seconds since the epoch."""


class Sink:
    """A destination of metric rows, episode records and spans of the timeline. By default all are ignored.

    A tracker is a subclass, named in `output.sinks`, that is created as `Tracker(config, run_dir)`. It runs on a thread
    of its own, where an exception is not fatal: the row is sent again later.
    """

    sent_step: int | None = None
    """Last step that the tracker has received before, by an earlier process of the run or before it was created again.
    None: unknown, so a tracker receives the rows of this process."""

    def row(self, row: MetricRow, name: str) -> None:
        """Write a row; `name` is the name of an evaluation, empty for a training step."""

    def episodes(self, step: int, kind: str, records: Sequence[EpisodeRecord]) -> None:
        """Write the episode records of a row; `kind` is train or eval."""

    def spans(self, step: int, spans: Sequence[Span]) -> None:
        """Write the spans that ended before the row of `step`, and behind the previous row."""

    def close(self) -> None:
        """Flush and close. Nothing is written afterwards."""


class MetricStream:
    """Writes each row and its episode records to all sinks in order."""

    def __init__(self, sinks: Sequence[Sink]) -> None:
        self.sinks = sinks

    def step(self, row: MetricRow, records: Sequence[EpisodeRecord]) -> None:
        """Write a training step."""
        self._write(row, "", "train", records)

    def spans(self, step: int, spans: Sequence[Span]) -> None:
        """Write spans of the timeline."""
        for sink in self.sinks:
            sink.spans(step, spans)

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
    """Appends rows to metrics.jsonl, episode records to episodes.jsonl and spans to timeline.jsonl, one JSON object per
    line.

    Opening the files of a resumed run drops a truncated last line and the rows that the run will write again: training
    steps after `done`, the last step of the checkpoint, and evaluations after `logged`, the last step in the batch log.
    A run with `logged` 0 starts with empty files.
    """

    def __init__(self, metrics: Path, episodes: Path, done: int, logged: int = 0, timeline: Path | None = None) -> None:
        self._metrics = metrics
        self._episodes = episodes
        self._timeline = timeline
        for path in (metrics, episodes, timeline):
            if path is not None and path.exists():
                _drop_rows_after(path, done, max(done, logged))

    def row(self, row: MetricRow, name: str) -> None:
        """Append a row; numbers that are not finite become null."""
        written: dict[str, Any] = dict(row)
        for key, value in row.items():
            if isinstance(value, float) and not math.isfinite(value):
                written[key] = None  # JSON has neither NaN nor infinity
        _append(self._metrics, written)

    def episodes(self, step: int, kind: str, records: Sequence[EpisodeRecord]) -> None:
        for record in records:
            _append(self._episodes, {"step": step, "kind": kind} | record)

    def spans(self, step: int, spans: Sequence[Span]) -> None:
        if self._timeline is not None and spans:
            _append(self._timeline, {"step": step, "spans": spans})


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the objects of a JSON Lines file of a run, without a last line that a crash truncated.

    Raises UserError for any other damaged line.
    """
    *lines, last = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines, start=1):
        row = parse_row(line)
        if row is None:
            raise UserError(f"{path} is damaged in line {number}: delete that line")
        yield row
    row = parse_row(last)
    if row is not None:
        yield row


def is_evaluation(row: Mapping[str, Any]) -> bool:
    """Return True if an object of metrics.jsonl or episodes.jsonl belongs to an evaluation."""
    return row.get("kind") == "eval" or "eval/episodes" in row


def parse_row(line: bytes) -> dict[str, Any] | None:
    """Return the object of a line; None if the line is not an object with an integer step."""
    try:
        row = json.loads(line)
    except ValueError:
        return None
    # `isinstance` would take True for an integer.
    if not isinstance(row, dict) or type(row.get("step")) is not int:
        return None
    return row


def _drop_rows_after(path: Path, done: int, logged: int) -> None:
    """Rewrite the file atomically with training steps up to `done` and evaluations up to `logged`."""
    lines = []
    for row in read_rows(path):
        last = logged if is_evaluation(row) else done
        if logged and row["step"] <= last:
            lines.append(_line(row))
    write_atomically(path, "".join(lines).encode())


def _append(path: Path, row: Mapping[str, Any]) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(_line(row))


def _line(row: Mapping[str, Any]) -> str:
    return json.dumps(row, ensure_ascii=False) + "\n"
