"""TensorBoard, and the choice of a run's trackers: `output.sinks`, and sections of plug-ins that enable one."""

from __future__ import annotations

import importlib.util
import logging
import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import ClassVar

from marl_ray.config import Config
from marl_ray.config.sections import OutputConfig
from marl_ray.config.values import Section
from marl_ray.core.errors import UserError
from marl_ray.telemetry import SINKS
from marl_ray.telemetry.metrics import MetricRow
from marl_ray.telemetry.sinks import Sink

logger = logging.getLogger(__name__)


class TrackerSection(Section):
    """The base of a plug-in's section whose key is the name of a tracker."""

    __slots__ = ()
    enabled_by: ClassVar[str]
    """Setting of the section that enables the tracker."""
    optional_package: ClassVar[str] = ""
    """Package without which the section enables nothing, for sections that configs from elsewhere have."""

    @property
    def is_enabled(self) -> bool:
        """Whether the setting is set, also if the optional package is missing."""
        return bool(getattr(self, self.enabled_by))

    @property
    def lacks_package(self) -> bool:
        """Whether the optional package is missing."""
        return self.optional_package != "" and importlib.util.find_spec(self.optional_package) is None


def enabled_sections(plugin_sections: Mapping[str, Section]) -> dict[str, TrackerSection]:
    """Return the sections that enable a tracker by its name, also sections whose optional package is missing."""
    enabled = {}
    for name, section in plugin_sections.items():
        if isinstance(section, TrackerSection) and section.is_enabled:
            enabled[name] = section
    return enabled


def tracker_names(output: OutputConfig, plugin_sections: Mapping[str, Section]) -> list[str]:
    """Return the names of a run's trackers: TensorBoard, trackers with an enabled section, and `output.sinks`."""
    names = ["tensorboard"] if output.tensorboard else []
    for name, section in enabled_sections(plugin_sections).items():
        if not section.lacks_package:
            names.append(name)
    return list(dict.fromkeys([*names, *output.sinks]))


def require_trackers(output: OutputConfig, plugin_sections: Mapping[str, Section]) -> None:
    """Raise UserError if the config names a tracker that does not exist or whose package is not installed. If only a
    section's optional package is missing, warn."""
    settings = {"tensorboard": "output.tensorboard"}
    for name, section in enabled_sections(plugin_sections).items():
        settings[name] = f"{name}.{section.enabled_by}"
        if section.lacks_package and name not in output.sinks:
            package = section.optional_package
            problem = f"{settings[name]} is set but the package {package} is missing"
            logger.warning(f"{problem}: metrics stay in the run folder")
    for name in tracker_names(output, plugin_sections):
        setting = "output.sinks" if name in output.sinks else settings[name]
        package = getattr(SINKS.get(name), "package", "")
        if package and importlib.util.find_spec(package) is None:
            raise UserError(f"{setting} is set but the package {package} is missing: pip install {package}")


def numbers(row: MetricRow) -> Iterator[tuple[str, float]]:
    """Yield the numbers of a row except its step; a number that is not finite is null in metrics.jsonl."""
    for key, value in row.items():
        if key != "step" and isinstance(value, int | float):
            yield key, value


class TensorBoardSink(Sink):
    """Writes every number of a row as a scalar at its step. A new sink writes all rows of the run folder again."""

    package = "tensorboard"
    sent_step = -1

    def __init__(self, config: Config, run_dir: Path) -> None:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        folder = run_dir / "tensorboard"
        shutil.rmtree(folder, ignore_errors=True)
        self.writer = EventFileWriter(str(folder))

    def row(self, row: MetricRow, name: str) -> None:
        """Write one event."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=key, simple_value=value) for key, value in numbers(row)]
        self.writer.add_event(Event(wall_time=time.time(), step=int(row["step"]), summary=Summary(value=values)))
        self.writer.flush()

    def close(self) -> None:
        self.writer.close()
