"""Sections of a config for trackers of metrics."""

from __future__ import annotations

from dataclasses import dataclass

from marl_ray.config.values import Section


@dataclass(frozen=True, slots=True, kw_only=True)
class WandbConfig(Section):
    """Weights & Biases, enabled by `project`. Requires the package wandb."""

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
class TrackioConfig(Section):
    """trackio, enabled by `project`. Requires the package trackio."""

    project: str | None = None
    """Project to log to. null: disabled."""
    space_id: str | None = None
    """Space that shows the run, such as `user/name`. null: files of this machine, which `trackio show` reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MlflowConfig(Section):
    """MLflow, enabled by `experiment`. Requires the package mlflow."""

    experiment: str | None = None
    """Experiment to log to. null: disabled."""
    tracking_uri: str | None = None
    """Server or database. null: MLFLOW_TRACKING_URI, or else the file mlflow.db in output.base_dir."""
