"""Weights & Biases, when the config names a project."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from marl_ray.config import Config, to_tree
from marl_ray.telemetry.metrics import Row


def require_wandb(config: Config) -> None:
    """Raises ValueError when a project is named but the package is not installed."""
    if config.wandb.project:
        try:
            import wandb  # noqa: F401
        except ImportError:
            raise ValueError("wandb.project is set but the package wandb is missing: pip install wandb") from None


class Wandb:
    """Sends rows; does nothing without a project."""

    def __init__(self, config: Config, run_dir: Path) -> None:
        self.run: Any = None
        if config.wandb.project:
            import wandb

            self.run = wandb.init(
                project=config.wandb.project,
                entity=config.wandb.entity,
                name=config.wandb.name or run_dir.name,
                dir=config.wandb.dir or str(run_dir),
                tags=config.wandb.tags,
                config=to_tree(config),
            )

    def log(self, row: Row) -> None:
        """One row, at its step."""
        if self.run is not None:
            self.run.log(row, step=int(row["step"]))

    def close(self) -> None:
        """Finish the run."""
        if self.run is not None:
            self.run.finish()
