"""The sink that keeps: metrics.jsonl and episodes.jsonl, one object a line, each at once."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from marl_ray.telemetry.records import Record
from marl_ray.telemetry.rows import Row


class Files:
    """Appends every row to `metrics`, and what is kept of its episodes to `episodes`.

    Rows of steps after the first `done`, which a resumed run takes again, are dropped, and a last line that was cut
    off; a run that has done no step starts with empty files.
    """

    def __init__(self, metrics: Path, episodes: Path, done: int) -> None:
        self._metrics = metrics
        self._episodes = episodes
        for path in (metrics, episodes):
            if path.exists():
                _keep(path, done)

    def row(self, row: Row, name: str) -> None:
        """A number that is not finite is written as null."""
        _append(
            self._metrics, {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()}
        )

    def episodes(self, step: int, kind: str, records: Sequence[Record]) -> None:
        """One line an episode."""
        for record in records:
            _append(self._episodes, {"step": step, "kind": kind} | record)

    def close(self) -> None:
        """Nothing is open."""


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a file; a last line that a crash cut off is left out."""
    *lines, last = path.read_text().split("\n")
    yield from map(json.loads, lines)
    if last:
        try:
            yield json.loads(last)
        except ValueError:
            return


def _keep(path: Path, done: int) -> None:
    """Rewrite the file with the rows up to step `done`, whole or not at all."""
    rows = [row for row in read_rows(path) if done and row["step"] <= done]
    fresh = path.with_suffix(".tmp")
    fresh.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    os.replace(fresh, path)


def _append(path: Path, row: dict[str, Any]) -> None:
    with path.open("a") as file:
        file.write(json.dumps(row, ensure_ascii=False) + "\n")
