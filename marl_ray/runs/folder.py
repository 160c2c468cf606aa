"""The folder of a run: the one place that knows what its files are called."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

from marl_ray.core.errors import UserError
from marl_ray.core.paths import expanded
from marl_ray.runs.checkpoints import Checkpoints


class RunFolder:
    """Paths in the folder of a run, which need not exist yet. Raises UserError for the home (~name) of nobody."""

    def __init__(self, path: Path) -> None:
        self.path = expanded(path).absolute()
        self.config = self.path / "config.yaml"
        """Everything resolved."""
        self.metrics = self.path / "metrics.jsonl"
        """One row a step and one an evaluation."""
        self.episodes = self.path / "episodes.jsonl"
        """A few episodes a row."""
        self.samples = self.path / "sample_episodes.txt"
        """The last evaluation, to read."""
        self.plot = self.path / "returns.png"
        """Reward over joint samples."""
        self.error = self.path / "error.txt"
        """The traceback of a run that a bug ended."""
        self.models = self.path / "models"
        """The trained models."""
        self.checkpoints = Checkpoints(self.path / "checkpoints")

    def __str__(self) -> str:
        return str(self.path)

    def model(self, agent: int) -> Path:
        """An agent's trained model, as transformers loads it."""
        return self.models / f"agent_{agent}"

    def make(self) -> None:
        """Create it, and see that files can be written there. Raises UserError."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.path):
                pass
        except OSError as error:
            raise UserError(f"output folder {self} cannot be written ({error.strerror}): set output.base_dir") from None

    def remove_if_empty(self) -> None:
        """A run that failed before its first row leaves nothing behind."""
        if {path.name for path in self.path.iterdir()} <= {self.config.name}:
            self.config.unlink(missing_ok=True)
            os.rmdir(self.path)


def new_folder(base_dir: str, run_name: str | None, prefix: str) -> RunFolder:
    """The folder of a new run, `run_name` below `base_dir`; without a name, one of `prefix`, time and process."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    return RunFolder(Path(base_dir) / (run_name or f"{prefix.replace(':', '.')}-{stamp}-{os.getpid()}"))
