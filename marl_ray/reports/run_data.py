"""The contents of a run folder that the HTML report shows. A run that is still training can be read too."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marl_ray.config import Config
from marl_ray.config.parsing import read_yaml
from marl_ray.core.errors import UserError
from marl_ray.reports.diagnostics import describe_wait_times, find_problems
from marl_ray.reports.episode_view import SelectedEpisode, select_episodes
from marl_ray.reports.run_summary import read_metrics
from marl_ray.storage.resume import SavedRun
from marl_ray.storage.run_folder import RunFolder
from marl_ray.telemetry.episode_records import EpisodeRecord
from marl_ray.telemetry.sinks import read_rows


@dataclass(frozen=True, slots=True)
class RunData:
    """A run's metrics, config, selected episodes and diagnostics."""

    name: str
    rows: Sequence[Mapping[str, Any]]
    config_text: str
    """config.yaml as it is on disk."""
    settings: Mapping[str, Any]
    """The same by dotted key (`magrpo.num_turns`)."""
    machine: Mapping[str, Any]
    """machine.json; empty if the file is missing."""
    wait_times: Sequence[str]
    problems: Sequence[str]
    episodes: Sequence[SelectedEpisode]
    num_episodes: int
    """Episodes in episodes.jsonl."""
    error: str
    """Traceback of the error that ended the run; empty if there is none."""


def load_run_data(path: Path, episodes: int) -> RunData:
    """Read a run folder, with the `episodes` best, worst and last episodes each.

    Raises UserError if there is no run folder at `path`, and for damaged files.
    """
    folder = RunFolder(path)
    rows = read_metrics(folder)
    config = _read_config(folder)
    selected, num_episodes = _select(folder, episodes)
    return RunData(
        name=folder.path.name,
        rows=rows,
        config_text=folder.config.read_text() if folder.config.exists() else "",
        settings=flatten(read_yaml(folder.config)) if folder.config.exists() else {},
        machine=_read_machine(folder),
        wait_times=describe_wait_times(config, rows) if config else (),
        problems=find_problems(rows),
        episodes=selected,
        num_episodes=num_episodes,
        error=folder.error.read_text(errors="replace") if folder.error.exists() else "",
    )


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested settings by dotted key."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _read_config(folder: RunFolder) -> Config | None:
    """Return None if config.yaml is missing or of a version that cannot be read; the report then shows its text only."""
    try:
        return SavedRun.read(folder.path).config()
    except UserError:
        return None


def _select(folder: RunFolder, count: int) -> tuple[list[SelectedEpisode], int]:
    """Return the selected episodes, and the number of episodes in the file."""
    total = 0

    def counted() -> Iterator[EpisodeRecord]:
        nonlocal total
        for record in read_rows(folder.episodes):
            total += 1
            yield record

    selected = select_episodes(counted(), count) if folder.episodes.exists() else []
    return selected, total


def _read_machine(folder: RunFolder) -> dict[str, Any]:
    try:
        machine = json.loads(folder.machine.read_text())
    except (FileNotFoundError, ValueError):
        return {}
    return machine if isinstance(machine, dict) else {}
