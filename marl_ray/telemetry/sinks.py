"""One stream of rows and episodes; whatever shows or keeps them is a sink of it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Protocol

from marl_ray.telemetry.episode_records import EpisodeRecord
from marl_ray.telemetry.metrics import MetricRow


class Sink(Protocol):
    """Where rows and episodes go. A sink that fails ends the run."""

    def row(self, row: MetricRow, name: str) -> None:
        """A row; `name` is the evaluation's, empty for a training step."""

    def episodes(self, step: int, kind: str, records: Sequence[EpisodeRecord]) -> None:
        """What is kept of a row's episodes; `kind` is train or eval."""

    def close(self) -> None:
        """Nothing more comes."""


class MetricStream:
    """Hands each row, and its episodes, to all sinks in their order."""

    def __init__(self, sinks: Sequence[Sink]) -> None:
        self.sinks = sinks

    def step(self, row: MetricRow, records: Sequence[EpisodeRecord]) -> None:
        """A training step."""
        self._hand_on(row, "", "train", records)

    def evaluation(self, row: MetricRow, name: str, records: Sequence[EpisodeRecord]) -> None:
        """An evaluation; `name` says which to people."""
        self._hand_on(row, name, "eval", records)

    def close(self) -> None:
        """Close every sink, also when closing one fails."""
        with ExitStack() as stack:
            for sink in reversed(self.sinks):
                stack.callback(sink.close)

    def _hand_on(self, row: MetricRow, name: str, kind: str, records: Sequence[EpisodeRecord]) -> None:
        for sink in self.sinks:
            sink.row(row, name)
            sink.episodes(int(row["step"]), kind, records)
