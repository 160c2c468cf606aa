"""The sink of TensorBoard, when the config asks for it: event files that `tensorboard --logdir runs` shows."""

from __future__ import annotations

import importlib.util
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

from marl_ray.config import Config
from marl_ray.core.errors import UserError
from marl_ray.telemetry.episode_records import EpisodeRecord
from marl_ray.telemetry.jsonl_sink import read_rows
from marl_ray.telemetry.metrics import MetricRow


def require_tensorboard(config: Config) -> None:
    """Raises UserError when it is asked for but the package is not installed."""
    if config.output.tensorboard and importlib.util.find_spec("tensorboard") is None:
        raise UserError("output.tensorboard is set but the package tensorboard is missing: pip install tensorboard")


class TensorBoardSink:
    """Sends rows, not episodes, a scalar a number, at its step. What a resumed run has kept of `metrics`, and nothing
    else, is there first: its former event files are written anew."""

    def __init__(self, folder: Path, metrics: Path) -> None:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        shutil.rmtree(folder, ignore_errors=True)
        self.writer = EventFileWriter(str(folder))
        for row in read_rows(metrics) if metrics.exists() else ():
            self.row(row, "")

    def row(self, row: MetricRow, name: str) -> None:
        """One event; null, which metrics.jsonl has for a number that is not finite, is left out."""
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
        """None are sent."""

    def close(self) -> None:
        """Close the file."""
        self.writer.close()
