"""Sections of a config for trackers of metrics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from marl_ray.core.errors import UserError
from marl_ray.telemetry.trackers import TrackerSection


@dataclass(frozen=True, slots=True, kw_only=True)
class WandbConfig(TrackerSection):
    """Weights & Biases, enabled by `project`. Requires the package wandb."""

    enabled_by: ClassVar[str] = "project"
    optional_package: ClassVar[str] = "wandb"

    project: str | None = None
    """Project to log to. null: disabled."""
    entity: str | None = None
    """User or team. null: the default of the account."""
    name: str | None = None
    """Name of the run. null: the name of the run folder."""
    dir: str | None = None
    """Folder for local files. null: the run folder."""
    tags: tuple[str, ...] = ()
    """Tags of the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackioConfig(TrackerSection):
    """trackio, enabled by `project`. Requires the package trackio."""

    enabled_by: ClassVar[str] = "project"

    project: str | None = None
    """Project to log to. null: disabled."""
    space_id: str | None = None
    """Space that shows the run, such as `user/name`. null: files of this machine, which `trackio show` reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MlflowConfig(TrackerSection):
    """MLflow, enabled by `experiment`. Requires the package mlflow."""

    enabled_by: ClassVar[str] = "experiment"

    experiment: str | None = None
    """Experiment to log to. null: disabled."""
    tracking_uri: str | None = None
    """Server or database. null: MLFLOW_TRACKING_URI, or else the file mlflow.db in output.base_dir."""

    def __post_init__(self) -> None:
        if "@" in (self.tracking_uri or ""):
            raise UserError(
                "mlflow.tracking_uri names a user, and would be written into the run folder: set the variables "
                "MLFLOW_TRACKING_URI, or MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"
            )
