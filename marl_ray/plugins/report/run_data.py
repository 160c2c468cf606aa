"""The data of a run's page: one JSON value, without markup."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

from marl_ray.config.values import read_yaml
from marl_ray.results.run_summary import reward_table
from marl_ray.storage.run_folder import RunFolder
from marl_ray.telemetry.sinks import read_rows

EPISODE_BYTES = 1_700_000
"""Maximum size of the episodes on a page, which leaves room for the metrics of a long run within 3 MB."""


def run_data(folder: RunFolder) -> dict[str, Any]:
    """Return the data of a run that may be starting, in progress, finished or failed.

    Raises UserError for a folder without a run and for damaged files.
    """
    folder.require(folder.config)
    rows: list[dict[str, Any]] = []
    if folder.metrics.exists():
        rows = list(read_rows(folder.metrics))
    data = {
        "name": folder.path.name,
        "config": read_yaml(folder.config),
        "reward_table": "\n".join(reward_table(rows)),
    }
    if importlib.util.find_spec("marl_ray.plugins.report.episode_data") is not None:
        episodes = importlib.import_module("marl_ray.plugins.report.episode_data")
        data["episodes"] = episodes.episode_data(folder, EPISODE_BYTES)
    return data
