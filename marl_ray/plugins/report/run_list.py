"""The data of a list of runs: a row per run, the settings that differ, and curves and values side by side."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from marl_ray.config.values import read_yaml
from marl_ray.cooperation.run_sentences import RECENT_STEPS
from marl_ray.core.errors import UserError
from marl_ray.plugins.report.chart_groups import COOPERATION, REWARDS, TURNS, ChartGroup, chart_groups
from marl_ray.plugins.report.comparison.paper_figure import metric_curves
from marl_ray.plugins.report.metric_columns import confidence_intervals, evenly, round_number
from marl_ray.plugins.report.metric_titles import title_of
from marl_ray.plugins.report.overview import before_and_after
from marl_ray.plugins.report.run_data import read_config, read_machine, read_metric_rows
from marl_ray.plugins.report.run_setup import flatten, plain, run_setup
from marl_ray.plugins.report.run_state import RunState, state_data
from marl_ray.results.diagnostics import Rows
from marl_ray.results.returns_plot import metric_points
from marl_ray.storage.run_folder import RunFolder

MAX_POINTS = 400
"""Maximum number of points of a run in a chart."""
SPARKLINE_POINTS = 60
NOT_KEY = ("output.", "resources.", "wandb.", "trackio.", "mlflow.", "model.template_date")
"""Prefixes of settings about machines and files, which change no result."""


@dataclass(frozen=True, slots=True)
class ListedRun:
    """A run in a list: its metric rows, the settings of config.yaml by dotted key, and its row in the table."""

    name: str
    rows: Rows
    settings: Mapping[str, Any]
    entry: dict[str, Any]


def read_listed_run(folder: RunFolder, link: str) -> ListedRun:
    """Read a run whose page is at `link`. A damaged run has a row that says so."""
    name = folder.path.name
    try:
        rows = read_metric_rows(folder)
        settings = flatten(read_yaml(folder.config)) if folder.config.exists() else {}
        config = read_config(folder)
        state = RunState.read(folder, config, rows)
    except UserError as error:
        return ListedRun(name, [], {}, {"name": name, "link": None, "problem": str(error)})
    setup = run_setup(config, read_machine(folder), rows)
    reward = before_and_after(rows, f"turn_{setup['turns']}/reward_mean")
    entry = {
        "name": name,
        "link": link,
        "problem": None,
        "state": state_data(state),
        "setup": setup,
        "reward": reward,
        "spark": _sparkline(rows, reward),
    }
    return ListedRun(name, rows, settings, entry)


def _sparkline(rows: Rows, reward: Mapping[str, Any] | None) -> list[float]:
    """Return the training rewards of the last turn; of a run without training steps, the held-out ones."""
    if reward is None:
        return []
    points = metric_points(rows, reward["metric"]) or metric_points(rows, f"eval/{reward['metric']}")
    return [round_number(y) for _, y in evenly(points, SPARKLINE_POINTS)]


def list_data(runs: Sequence[ListedRun]) -> dict[str, Any]:
    """Return the data of the list."""
    readable = [run for run in runs if run.entry["problem"] is None]
    by_section: dict[str, list[ChartGroup]] = defaultdict(list)
    for group in chart_groups(list(chain(*(run.rows for run in readable)))):
        by_section[group.section].append(group)
    values = {
        "rewards": _last_values(readable, by_section[REWARDS]),
        "cooperation": _last_values(readable, by_section[COOPERATION]),
        "other turn metrics": _last_values(readable, by_section[TURNS]),
    }
    return {
        "name": f"{len(runs)} runs",
        "runs": [run.entry for run in runs],
        "names": [run.name for run in readable],
        "settings": differing_settings(readable),
        "charts": _charts(readable, by_section[REWARDS]),
        "values": values,
    }


def _charts(runs: Sequence[ListedRun], groups: Sequence[ChartGroup]) -> list[dict[str, Any]]:
    """Return a chart per reward metric with one quantity for all runs: held-out values if every run has enough."""
    charts = []
    for group in groups:
        for label, metric in group.metrics.items():
            names = [metric] * len(runs)
            held_out, curves = metric_curves([run.rows for run in runs], names)
            points = []
            for curve in curves:
                points.append([[round_number(x), round_number(y)] for x, y in evenly(curve, MAX_POINTS)])
            if any(points):
                unit = title_of(group.name)[1]
                charts.append({"title": _title(group, label), "unit": unit, "held_out": held_out, "curves": points})
    return charts


def _title(group: ChartGroup, label: str) -> str:
    title, _ = title_of(group.name)
    return f"{title}, {label}" if label else title


def _last_values(runs: Sequence[ListedRun], groups: Sequence[ChartGroup]) -> list[tuple[str, list[str]]]:
    """Return (row title, a cell per run), without rows that are empty for every run."""
    table = []
    for group in groups:
        for label, metric in group.metrics.items():
            title = _title(group, label)
            training = [_last_training_mean(run, metric) for run in runs]
            if any(training):
                table.append((title, training))
            held_out = [_last_evaluation(run, metric) for run in runs]
            if any(held_out):
                table.append((f"{title}, held-out", held_out))
    return table


def _last_training_mean(run: ListedRun, metric: str) -> str:
    points = metric_points(run.rows, metric)[-RECENT_STEPS:]
    if not points:
        return ""
    return f"{sum(y for _, y in points) / len(points):.4g}"


def _last_evaluation(run: ListedRun, metric: str) -> str:
    points = metric_points(run.rows, f"eval/{metric}")
    if not points:
        return ""
    _, value = points[-1]
    text = f"{value:.4g}"
    for low, high in confidence_intervals(run.rows, metric)[-1:]:
        if low < high:
            text += f" [{low:.4g}, {high:.4g}]"
    return text


def differing_settings(runs: Sequence[ListedRun]) -> list[dict[str, Any]]:
    """Return the settings whose values differ, with a value per run and whether they may change the result."""
    keys: dict[str, None] = {}
    """Keys of all runs, in order of first appearance."""
    for run in runs:
        keys |= dict.fromkeys(run.settings)
    table = []
    for key in keys:
        values = []
        for run in runs:
            values.append(plain(run.settings[key]) if key in run.settings else "not set")
        if len(set(values)) > 1:
            table.append({"key": key, "values": values, "is_key": not key.startswith(NOT_KEY)})
    return table
