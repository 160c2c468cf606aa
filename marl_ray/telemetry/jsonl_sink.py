"""The sink that keeps: metrics.jsonl and episodes.jsonl, one object a line, each at once."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from marl_ray.core.errors import UserError
from marl_ray.core.files import write_atomically
from marl_ray.telemetry.episode_records import EpisodeRecord
from marl_ray.telemetry.metrics import MetricRow


class JsonlSink:
    """Appends every row to `metrics`, and what is kept of its episodes to `episodes`.

    What a resumed run takes again is dropped, and a last line that was cut off: training steps after the first `done`,
    which the checkpoint has seen, and evaluations after the first `logged`, whose batches are in the log. With none
    in the log a run starts with empty files.
    """

    def __init__(self, metrics: Path, episodes: Path, done: int, logged: int = 0) -> None:
        self._metrics = metrics
        self._episodes = episodes
        for path in (metrics, episodes):
            if path.exists():
                _keep(path, done, max(done, logged))

    def row(self, row: MetricRow, name: str) -> None:
        """A number that is not finite is written as null."""
        _append(
            self._metrics, {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()}
        )

    def episodes(self, step: int, kind: str, records: Sequence[EpisodeRecord]) -> None:
        """One line an episode."""
        for record in records:
            _append(self._episodes, {"step": step, "kind": kind} | record)

    def close(self) -> None:
        """Nothing is open."""


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a file; a last line that a crash cut off is left out. Raises UserError for another bad line."""
    *lines, last = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines, start=1):
        row = _row(line)
        if row is None:
            raise UserError(f"{path} is damaged in line {number}: delete that line")
        yield row
    cut_off = _row(last)
    if cut_off is not None:
        yield cut_off


def is_evaluation(row: dict[str, Any]) -> bool:
    """Whether an object of either file is an evaluation's; else it is a training step's."""
    return row.get("kind") == "eval" or "eval/episodes" in row


def _row(line: bytes) -> dict[str, Any] | None:
    """The object in a line; None where there is none that names its step."""
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) and type(row.get("step")) is int else None


def _keep(path: Path, done: int, logged: int) -> None:
    """Rewrite the file with the training steps up to `done` and the evaluations up to `logged`, whole or not at all."""
    rows = [row for row in read_rows(path) if logged and row["step"] <= (logged if is_evaluation(row) else done)]
    write_atomically(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode())


def _append(path: Path, row: dict[str, Any]) -> None:
    with path.open("a") as file:
        file.write(json.dumps(row, ensure_ascii=False) + "\n")
