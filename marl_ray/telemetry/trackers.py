"""Sinks of experiment trackers: TensorBoard event files (`tensorboard --logdir runs`), and Weights & Biases."""

from __future__ import annotations

import importlib.util
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

from marl_ray.config import Config, to_tree
from marl_ray.core.errors import UserError
from marl_ray.telemetry.episode_records import EpisodeRecord
from marl_ray.telemetry.metrics import MetricRow
from marl_ray.telemetry.sinks import read_rows


def require_trackers(config: Config) -> None:
    """Raise UserError if the config asks for a tracker whose package is not installed."""
    if config.wandb.project and importlib.util.find_spec("wandb") is None:
        raise UserError("wandb.project is set but the package wandb is missing: pip install wandb")
    if config.output.tensorboard and importlib.util.find_spec("tensorboard") is None:
        raise UserError("output.tensorboard is set but the package tensorboard is missing: pip install tensorboard")


class TensorBoardSink:
    """Writes every number of a row as a scalar at its step.

    On resume the event files are rewritten from the rows that metrics.jsonl has kept.
    """

    def __init__(self, folder: Path, metrics: Path) -> None:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        shutil.rmtree(folder, ignore_errors=True)
        self.writer = EventFileWriter(str(folder))
        for row in read_rows(metrics) if metrics.exists() else ():
            self.row(row, "")

    def row(self, row: MetricRow, name: str) -> None:
        """Write one event; null (a number that is not finite) is left out."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [
            Summary.Value(tag=key, simple_value=value)
            for key, value in row.items()
            if key != "step" and isinstance(value, int | float)
        ]
        self.writer.add_event(Event(wall_time=time.time(), step=int(row["step"]), summary=Summary(value=values)))
        self.writer.flush()

    def episodes(self, step: int, kind: str, records: Sequence[EpisodeRecord]) -> None:
        """Do nothing: episodes are not written."""

    def close(self) -> None:
        self.writer.close()


class WandbSink:
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

    def episodes(self, step: int, kind: str, records: Sequence[EpisodeRecord]) -> None:
        """Do nothing: episodes are not logged."""

    def close(self) -> None:
        self.run.finish()
