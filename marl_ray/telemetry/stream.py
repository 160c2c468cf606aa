"""One stream of rows and episodes; whatever shows or keeps them is a sink of it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Protocol

from marl_ray.core.tree import Episode
from marl_ray.telemetry.rows import Row


class Sink(Protocol):
    """Where rows and episodes go. A sink that fails ends the run."""

    def row(self, row: Row, name: str) -> None:
        """A row; `name` is the evaluation's, empty for a training step."""

    def episodes(self, step: int, kind: str, episodes: Sequence[Episode]) -> None:
        """All episodes of a row; `kind` is train or eval."""

    def close(self) -> None:
        """Nothing more comes."""


class RowStream:
    """Hands each row, and its episodes, to all sinks in their order."""

    def __init__(self, sinks: Sequence[Sink]) -> None:
        self.sinks = sinks

    def step(self, row: Row, episodes: Sequence[Episode]) -> None:
        """A training step."""
        self._hand_on(row, "", "train", episodes)

    def evaluation(self, row: Row, name: str, episodes: Sequence[Episode]) -> None:
        """An evaluation; `name` says which to people."""
        self._hand_on(row, name, "eval", episodes)

    def close(self) -> None:
        """Close every sink, also when closing one fails."""
        with ExitStack() as stack:
            for sink in reversed(self.sinks):
                stack.callback(sink.close)

    def _hand_on(self, row: Row, name: str, kind: str, episodes: Sequence[Episode]) -> None:
        for sink in self.sinks:
            sink.row(row, name)
            sink.episodes(int(row["step"]), kind, episodes)
