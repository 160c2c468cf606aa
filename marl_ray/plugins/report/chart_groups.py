"""Grouping of metrics into charts, and the data series of each chart. Metric names: docs/reference/metrics.md."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

from marl_ray.core.statistics import half_width, wilson_interval
from marl_ray.plugins.report.svg_charts import Series
from marl_ray.results.diagnostics import Rows

SECTIONS = ("Rewards", "Cooperation", "Reward levels", "Other turn metrics", "Agents", "Rollout and sandbox", "Time")
REWARDS, COOPERATION, LEVELS, TURNS, AGENTS, ROLLOUT, TIME = SECTIONS
FIRST = ("reward_mean", "all_passed", "expected_return", "tests_passed_rate")
"""Turn metrics that come before the others, in section Rewards."""
REVISIONS = ("keep_rate", "fix_rate", "first_pass@2")
CREDIT = ("influence", "credit_fidelity", "credit_variance")
STEP_TIMES = ("step", "rollout", "learn", "sync", "idle")
TURN_METRIC = re.compile(r"turn_(\d+)/(.+)")
AGENT_METRIC = re.compile(r"(agent|policy)_(\d+)/(.+)")
CONTRIBUTION = re.compile(r"cooperation/agent_(\d+)_contribution")
DEVICE_METRIC = re.compile(r"memory/device_(\d+)/(.+)")
X_AXIS = ("step", "env_steps")


@dataclass(frozen=True, slots=True)
class ChartGroup:
    """The metrics of one chart by their labels, with the chart's title and section."""

    section: str
    title: str
    metrics: Mapping[str, str]


def chart_groups(rows: Rows) -> list[ChartGroup]:
    """Return the groups of all metrics in the rows, in the order of the sections.

    A metric and its evaluation (`eval/...`) share a group, under the name without the prefix.
    """
    metrics: dict[tuple[str, str], dict[str, str]] = defaultdict(dict)
    for key in dict.fromkeys(key.removeprefix("eval/") for row in rows for key in row if key not in X_AXIS):
        section, title, label = _classify(key)
        metrics[section, title][label] = key
    groups = [ChartGroup(section, title, dict(sorted(labels.items()))) for (section, title), labels in metrics.items()]
    return sorted(groups, key=lambda group: (SECTIONS.index(group.section), _rank(group.title)))


def group_series(rows: Rows, group: ChartGroup) -> list[Series]:
    """Return the series of a group's metrics, with a colour per metric."""
    labels = enumerate(group.metrics.items())
    return [series for colour, (label, metric) in labels for series in metric_series(rows, metric, label, colour)]


def metric_series(rows: Rows, metric: str, label: str, colour: int) -> list[Series]:
    """Return a metric's training steps as a line and its evaluations as marks, over joint samples."""
    series = []
    if line := metric_points(rows, metric):
        series.append(Series(label, colour, line))
    if marks := metric_points(rows, f"eval/{metric}"):
        series.append(Series(f"{label} held-out".strip(), colour, marks, True, confidence_intervals(rows, metric)))
    return series


def metric_points(rows: Iterable[Mapping[str, Any]], key: str) -> list[tuple[float, float]]:
    """Return (joint samples, value) of the rows that have a finite value."""
    return [(float(row.get("env_steps", 0)), float(row[key])) for row in rows if _is_number(row.get(key))]


def confidence_intervals(rows: Iterable[Mapping[str, Any]], metric: str) -> list[tuple[float, float]]:
    """Return the 95 % interval of each evaluation's mean reward, or of its pass rate (Wilson); empty for other metrics.

    Joint actions of one task are not independent, so the sample size is the number of tasks. With one task the
    interval is the value itself. The order is that of `metric_points`.
    """
    turn, _, name = metric.rpartition("/")
    if name not in ("reward_mean", "all_passed"):
        return []
    bounds = []
    for row in rows:
        value, tasks = row.get(f"eval/{metric}"), row.get("eval/episodes") or 0
        if not _is_number(value):
            continue
        deviation = row.get(f"eval/{turn}/reward_std")
        if name == "all_passed" and tasks > 1:
            bounds.append(wilson_interval(value, tasks))
        elif tasks > 1 and _is_number(deviation):
            half = half_width(deviation, tasks)
            bounds.append((value - half, value + half))
        else:
            bounds.append((value, value))
    return bounds


def _classify(key: str) -> tuple[str, str, str]:
    """Return the metric's section, chart title and label."""
    if match := TURN_METRIC.fullmatch(key):
        turn, name = f"turn {match[1]}", match[2]
        if name in REVISIONS:
            return COOPERATION, f"revisions in {turn}", name
        if name.startswith("level/"):
            return LEVELS, turn, name.removeprefix("level/")
        return (REWARDS if name in FIRST else TURNS), name, turn
    if match := CONTRIBUTION.fullmatch(key):
        return COOPERATION, "contribution to the reward", f"agent {match[1]}"
    if key.startswith("cooperation/"):
        return COOPERATION, key.removeprefix("cooperation/").replace("_", " "), ""
    if key.startswith(("tokens/", "reward_per_token/")):
        title, _, label = key.partition("/")
        return COOPERATION, "tokens per episode" if title == "tokens" else "reward per token", label.replace("_", " ")
    if match := AGENT_METRIC.fullmatch(key):
        turn, _, name = match[3].partition("/")
        if name in CREDIT:
            return COOPERATION, f"{name.replace('_', ' ')}, {turn.replace('_', ' ')}", f"agent {match[2]}"
        return AGENTS, match[3], f"{match[1]} {match[2]}"
    if key.startswith("time/"):
        name = key.removeprefix("time/")
        if name in STEP_TIMES:
            return TIME, "seconds per step", name
        if match := AGENT_METRIC.fullmatch(name):
            return TIME, f"seconds per step: {match[3]}", f"{match[1]} {match[2]}"
        return TIME, name, ""
    if match := DEVICE_METRIC.fullmatch(key):
        return ROLLOUT, f"memory of device {match[1]}, MB", match[2]
    return ROLLOUT, key, ""


def _rank(title: str) -> tuple[int, str]:
    return (FIRST.index(title) if title in FIRST else len(FIRST), title)


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and math.isfinite(value)
