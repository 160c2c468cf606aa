"""The sink of Weights & Biases, when the config names a project."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path

from marl_ray.config import Config, to_tree
from marl_ray.core.errors import UserError
from marl_ray.telemetry.episode_records import EpisodeRecord
from marl_ray.telemetry.metrics import MetricRow


def require_wandb(config: Config) -> None:
    """Raises UserError when a project is named but the package is not installed."""
    if config.wandb.project and importlib.util.find_spec("wandb") is None:
        raise UserError("wandb.project is set but the package wandb is missing: pip install wandb")


class WandbSink:
    """Sends rows, not episodes."""

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
        """One row, at its step."""
        self.run.log(row, step=int(row["step"]))

    def episodes(self, step: int, kind: str, records: Sequence[EpisodeRecord]) -> None:
        """None are sent."""

    def close(self) -> None:
        """Finish the run."""
        self.run.finish()
