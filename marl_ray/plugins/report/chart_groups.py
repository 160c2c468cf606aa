"""Grouping of metrics into charts, and the data series of each chart. Metric names: docs/reference/metrics.md."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from marl_ray.core.statistics import half_width, wilson_interval
from marl_ray.plugins.report.svg_charts import Series
from marl_ray.results.diagnostics import Rows
from marl_ray.results.returns_plot import is_number, metric_points

REWARDS = "Rewards"
COOPERATION = "Cooperation"
LEVELS = "Reward levels"
TURNS = "Other turn metrics"
AGENTS = "Agents"
ROLLOUT = "Rollout and sandbox"
TIME = "Time"
SECTIONS = (REWARDS, COOPERATION, LEVELS, TURNS, AGENTS, ROLLOUT, TIME)
"""Sections in the order of the page."""
FIRST = ("reward_mean", "all_passed", "expected_return", "tests_passed_rate")
"""Turn metrics that come before the others, in section Rewards."""
REVISIONS = ("keep_rate", "fix_rate", "first_pass@2")
CREDIT = ("influence", "credit_fidelity", "credit_variance")
STEP_TIMES = ("step", "rollout", "learn", "sync", "idle")
EXACT = ("learning_rate", "weight_version", "staleness_max", "held_up_by")
"""Metrics without noise, or with numbers that are names: their mean over steps is no value of theirs."""
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
    keys: dict[str, None] = {}
    """Keys of all rows, in order of first appearance."""
    for row in rows:
        keys |= dict.fromkeys(row)
    metrics: dict[tuple[str, str], dict[str, str]] = defaultdict(dict)
    for key in keys:
        if key in X_AXIS:
            continue
        name = key.removeprefix("eval/")
        section, title, label = _classify(name)
        metrics[section, title][label] = name
    groups = []
    for (section, title), labels in metrics.items():
        groups.append(ChartGroup(section, title, dict(sorted(labels.items()))))
    return sorted(groups, key=_place)


def group_series(rows: Rows, group: ChartGroup) -> list[Series]:
    """Return the series of a group's metrics, with a colour per metric."""
    series = []
    for colour, (label, metric) in enumerate(group.metrics.items()):
        series += metric_series(rows, metric, label, colour)
    return series


def metric_series(rows: Rows, metric: str, label: str, colour: int) -> list[Series]:
    """Return a metric's training steps as a line and its evaluations as marks, over joint samples."""
    series = []
    line = metric_points(rows, metric)
    if line:
        series.append(Series(label, colour, line, smooth=metric.rpartition("/")[2] not in EXACT))
    marks = metric_points(rows, f"eval/{metric}")
    if marks:
        bounds = confidence_intervals(rows, metric)
        series.append(Series(f"{label} held-out".strip(), colour, marks, True, bounds))
    return series


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
        value = row.get(f"eval/{metric}")
        if not is_number(value):
            continue
        tasks = row.get("eval/episodes") or 0
        deviation = row.get(f"eval/{turn}/reward_std")
        if name == "all_passed" and tasks > 1:
            bounds.append(wilson_interval(value, tasks))
        elif tasks > 1 and is_number(deviation):
            half = half_width(deviation, tasks)
            bounds.append((value - half, value + half))
        else:
            bounds.append((value, value))
    return bounds


def _classify(key: str) -> tuple[str, str, str]:
    """Return the metric's section, chart title and label."""
    match = TURN_METRIC.fullmatch(key)
    if match:
        turn = f"turn {match[1]}"
        name = match[2]
        if name in REVISIONS:
            return COOPERATION, f"revisions in {turn}", name
        if name.startswith("level/"):
            return LEVELS, turn, name.removeprefix("level/")
        return REWARDS if name in FIRST else TURNS, name, turn
    match = CONTRIBUTION.fullmatch(key)
    if match:
        return COOPERATION, "contribution to the reward", f"agent {match[1]}"
    prefix, slash, rest = key.partition("/")
    if not slash:
        return ROLLOUT, key, ""
    words = rest.replace("_", " ")
    if prefix == "cooperation":
        return COOPERATION, words, ""
    if prefix == "tokens":
        return COOPERATION, "tokens per episode", words
    if prefix == "reward_per_token":
        return COOPERATION, "reward per token", words
    match = AGENT_METRIC.fullmatch(key)
    if match:
        turn, _, name = match[3].partition("/")
        if name in CREDIT:
            return COOPERATION, f"{name}, {turn}".replace("_", " "), f"agent {match[2]}"
        return AGENTS, match[3], f"{match[1]} {match[2]}"
    if prefix == "time":
        if rest in STEP_TIMES:
            return TIME, "seconds per step", rest
        match = AGENT_METRIC.fullmatch(rest)
        if match:
            return TIME, f"seconds per step: {match[3]}", f"{match[1]} {match[2]}"
        return TIME, rest, ""
    match = DEVICE_METRIC.fullmatch(key)
    if match:
        return ROLLOUT, f"memory of device {match[1]}, MB", match[2]
    return ROLLOUT, key, ""


def _place(group: ChartGroup) -> tuple[int, int, str]:
    """Return the sort key of a group: the titles of FIRST come before others."""
    rank = FIRST.index(group.title) if group.title in FIRST else len(FIRST)
    return SECTIONS.index(group.section), rank, group.title
