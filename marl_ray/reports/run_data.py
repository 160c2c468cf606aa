"""What a page needs of a run's folder, read once. A run that still goes on can be read too."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marl_ray.config import Config
from marl_ray.config.parsing import read_yaml
from marl_ray.core.errors import UserError
from marl_ray.reports.alerts import alerts
from marl_ray.reports.episode_html import SelectedEpisode, select_episodes
from marl_ray.reports.run_summary import read_metrics
from marl_ray.reports.waiting import waiting
from marl_ray.storage.resume import SavedRun
from marl_ray.storage.run_folder import RunFolder
from marl_ray.telemetry.jsonl_sink import read_rows


@dataclass(frozen=True, slots=True)
class RunData:
    """`settings` are those of config.yaml, flat, by key; `config_text` is the file; `machine` is machine.json's
    content, empty for runs that left none; `episodes` were chosen of `episodes_kept`."""

    name: str
    rows: Sequence[Mapping[str, Any]]
    config_text: str
    settings: Mapping[str, Any]
    machine: Mapping[str, Any]
    waiting: Sequence[str]
    alerts: Sequence[str]
    episodes: Sequence[SelectedEpisode]
    episodes_kept: int
    error: str
    """The traceback of the bug that ended it; empty if none did."""


def load_run_data(path: Path, episodes: int) -> RunData:
    """A run's folder, with so many of its best, worst and last episodes. Raises UserError where there is none, and for
    files that are damaged."""
    folder = RunFolder(path)
    rows = read_metrics(folder)
    config = _config(folder)
    chosen, kept = _episodes(folder, episodes)
    return RunData(
        name=folder.path.name,
        rows=rows,
        config_text=folder.config.read_text() if folder.config.exists() else "",
        settings=flat(read_yaml(folder.config)) if folder.config.exists() else {},
        machine=_machine(folder),
        waiting=waiting(config, rows) if config else (),
        alerts=alerts(rows),
        episodes=chosen,
        episodes_kept=kept,
        error=folder.error.read_text(errors="replace") if folder.error.exists() else "",
    )


def flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Settings by their whole keys, as `magrpo.num_turns`."""
    found: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value
    return found


def _config(folder: RunFolder) -> Config | None:
    """None where config.yaml is missing, or of a version that this one cannot read: its text is shown all the same."""
    try:
        return SavedRun.read(folder.path).config()
    except UserError:
        return None


def _episodes(folder: RunFolder, count: int) -> tuple[list[SelectedEpisode], int]:
    if not folder.episodes.exists():
        return [], 0
    kept = 0

    def counting() -> Any:
        nonlocal kept
        for record in read_rows(folder.episodes):
            kept += 1
            yield record

    return select_episodes(counting(), count), kept


def _machine(folder: RunFolder) -> dict[str, Any]:
    try:
        found = json.loads(folder.machine.read_text())
    except (FileNotFoundError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
