"""The data of a run's page: one JSON value, without markup."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

from marl_ray.config import Config
from marl_ray.cooperation.run_sentences import cooperation_summary
from marl_ray.core.errors import UserError
from marl_ray.plugins.report.chart_groups import chart_groups
from marl_ray.plugins.report.episode_data import episode_data
from marl_ray.plugins.report.metric_columns import evaluation_columns, training_columns
from marl_ray.plugins.report.overview import overview
from marl_ray.plugins.report.run_setup import changed_settings, flatten, plain, run_setup
from marl_ray.plugins.report.run_state import RunState, state_data
from marl_ray.plugins.report.time_parts import time_parts
from marl_ray.plugins.report.wait_picture import wait_picture
from marl_ray.results.diagnostics import describe_device_memory, describe_wait_times
from marl_ray.results.run_summary import reward_table
from marl_ray.storage.resume import SavedRun
from marl_ray.storage.run_folder import RunFolder
from marl_ray.telemetry.sinks import read_rows

EPISODE_BYTES = 1_400_000
"""Maximum size of the episodes on a page, which leaves room for the metrics of a long run within 3 MB."""


def run_data(folder: RunFolder, episode_bytes: int = EPISODE_BYTES, live: bool = False) -> dict[str, Any]:
    """Return the data of a run that may be starting, in progress, finished or failed. `live`: a server has its
    episodes.

    Raises UserError for a folder without a run and for damaged files.
    """
    require_run(folder)
    config_text = ""
    if folder.config.exists():
        config_text = folder.config.read_text(encoding="utf-8")
    config = read_config(folder)
    rows = read_metric_rows(folder)
    spans = []
    if folder.timeline.exists():
        spans = list(read_rows(folder.timeline))
    machine = read_machine(folder)
    setup = run_setup(config, machine, rows)
    state = RunState.read(folder, config, rows)
    charts = [group.as_data() for group in chart_groups(rows)]
    data = {
        "name": folder.path.name,
        "path": str(folder.path),
        "made": time.time(),
        "state": state_data(state),
        "setup": setup,
        "overview": overview(rows, setup["turns"]),
        "training": training_columns(rows),
        "evaluations": evaluation_columns(rows),
        "charts": charts,
        "cooperation": list(cooperation_summary(rows)),
        "wait_times": describe_wait_times(config, rows) if config is not None else [],
        "memory": describe_device_memory(rows),
        "waits": wait_picture(spans),
        "time_parts": time_parts(spans),
        "reward_table": "\n".join(reward_table(rows)),
        "settings": changed_settings(config),
        "machine": [[key, plain(value)] for key, value in flatten(machine).items()],
        "config_text": config_text,
        "episodes": None,
    }
    if episode_bytes:
        data["episodes"] = episode_data(folder, episode_bytes, with_tokens=not live)
    return data


def require_run(folder: RunFolder) -> None:
    """Raise UserError for a folder without a run. A run that is starting has no metrics yet."""
    if not folder.metrics.exists():
        folder.require(folder.config)


def read_metric_rows(folder: RunFolder) -> list[dict[str, Any]]:
    """Return the metric rows of a run, which has none before its first evaluation or step."""
    return list(read_rows(folder.metrics)) if folder.metrics.exists() else []


def read_config(folder: RunFolder) -> Config | None:
    """Return the config of a run; None if it is missing, or of a version that cannot be read."""
    try:
        return SavedRun.read(folder.path).config()
    except UserError:
        return None


def read_machine(folder: RunFolder) -> Mapping[str, Any]:
    """Return the content of machine.json; nothing before the actors of a run are ready."""
    try:
        machine: Mapping[str, Any] = json.loads(folder.machine.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    return machine
