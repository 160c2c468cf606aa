"""The results of a run for Python programs: `Run`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from marl_ray.config import Config
from marl_ray.core.errors import UserError
from marl_ray.models.names import resolve_model
from marl_ray.results.returns_plot import plot_run
from marl_ray.results.run_summary import plot_title
from marl_ray.storage.resume import SavedRun
from marl_ray.storage.run_folder import RunFolder
from marl_ray.telemetry.sinks import read_rows

if TYPE_CHECKING:
    import pandas


class Run:
    """A run in a folder, finished or in progress. Files are read at each access. A notebook shows the plot of the run.

    Raises UserError if the folder contains no run.
    """

    def __init__(self, path: Path) -> None:
        self._saved = SavedRun.read(path)
        self._folder = RunFolder(self._saved.folder.path)

    def __repr__(self) -> str:
        rows = self.metrics
        step = rows[-1]["step"] if rows else 0
        return f"Run({str(self.path)!r}, step {step})"

    @property
    def path(self) -> Path:
        """The run folder."""
        return self._folder.path

    @property
    def config(self) -> Config:
        """The resolved config. `run.config.to_yaml()` is the text of a YAML file that starts the same run."""
        return SavedRun.read(self.path).config()

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The rows of metrics.jsonl in order, one per step and one per evaluation (docs/reference/metrics.md)."""
        if not self._folder.metrics.exists():
            return []  # before the first step
        return list(read_rows(self._folder.metrics))

    def to_pandas(self) -> pandas.DataFrame:
        """Return the metrics as a table, one row per step and per evaluation. Requires pandas."""
        import pandas

        return pandas.DataFrame(self.metrics)

    @property
    def episodes(self) -> Iterator[dict[str, Any]]:
        """The recorded episodes in order, with all texts (`output.episodes_per_step`, docs/reference/run_folder.md)."""
        if not self._folder.episodes.exists():
            return iter(())
        return read_rows(self._folder.episodes)

    @property
    def models(self) -> list[Path]:
        """The folder of each agent's trained model; agents of a shared policy have the same folder. Empty before the
        end of the run."""
        config = self.config
        folders = [self._folder.model(config.policy_of(agent)) for agent in range(config.num_agents)]
        if not all(map(Path.is_dir, folders)):
            return []
        return folders

    def load_model(self, agent: int = 0) -> tuple[Any, Any]:
        """Return the trained model of an agent and its tokenizer, as objects of transformers. Adapters are loaded on
        top of their base model. Raises UserError if there is no trained model."""
        from marl_ray.models.weight_files import load_trained_model

        folders = self.models
        if not folders:
            raise UserError(f"{self.path} has no trained models yet: see its checkpoints/")
        if agent not in range(len(folders)):
            raise UserError(f"there is no agent {agent}: the run has {len(folders)}, from 0")
        return load_trained_model(folders[agent], resolve_model(self.config.agents[agent].name))

    def plot(self) -> Path:
        """Write the plot of the mean rewards and return its file, returns.png in the run folder."""
        plot_run(self.metrics, self._folder.plot, plot_title(self.config))
        return self._folder.plot

    def _repr_png_(self) -> bytes | None:
        """Return the plot for a notebook; None before the first step."""
        if not self.metrics:
            return None
        return self.plot().read_bytes()
