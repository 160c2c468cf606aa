"""One stream of rows and episodes; whatever shows or keeps them is a sink of it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Protocol

from marl_ray.config import Config, to_yaml
from marl_ray.core.tree import Episode
from marl_ray.runs.folder import RunFolder
from marl_ray.telemetry.console import Console
from marl_ray.telemetry.files import Files
from marl_ray.telemetry.rows import Row
from marl_ray.telemetry.wandb import Wandb


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


def open_stream(config: Config, folder: RunFolder, done: int, total: int) -> RowStream:
    """The sinks that the config asks for, of a run that has done `done` of `total` steps.

    From here on the folder is this config's: a resumed run's is written anew, with what was overridden.
    """
    folder.config.write_text(to_yaml(config))
    sinks: list[Sink] = [
        Files(folder.metrics, folder.episodes, config.output.episodes_per_step, done),
        Console(total, done, config.num_agents, config.rollout.num_turns, config.loop.logging_steps),
    ]
    if config.wandb.project:
        sinks.append(Wandb(config, folder.path))
    return RowStream(sinks)
