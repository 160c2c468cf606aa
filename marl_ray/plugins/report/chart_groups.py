"""Grouping of metrics into charts with human titles. Metric names: docs/reference/metrics.md."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from marl_ray.plugins.report.metric_titles import title_of
from marl_ray.results.diagnostics import Rows

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
REVISIONS = ("keep_rate", "fix_rate", "first_pass@2", "first_visible@2")
CREDIT = ("influence", "credit_fidelity", "credit_variance")
STEP_TIMES = ("step", "rollout", "learn", "sync", "idle")
EXACT = ("learning_rate", "weight_version", "staleness_max", "held_up_by", "optimizer_steps", "skipped_steps")
"""Metrics without noise, or with numbers that are names: their mean over steps is no value of theirs."""
TURN_METRIC = re.compile(r"turn_(\d+)/(.+)")
AGENT_METRIC = re.compile(r"(agent|policy)_(\d+)/(.+)")
CONTRIBUTION = re.compile(r"cooperation/agent_(\d+)_contribution")
DEVICE_METRIC = re.compile(r"memory/device_(\d+)/(.+)")
X_AXIS = ("step", "env_steps")


@dataclass(frozen=True, slots=True)
class ChartGroup:
    """The metrics of one chart by their labels, with the chart's section and name."""

    section: str
    name: str
    metrics: Mapping[str, str]

    def as_data(self) -> dict[str, Any]:
        """Return the group as data of the page, with its title, unit and whether its values may be smoothed."""
        base, comma, rest = self.name.partition(", ")
        title, unit = title_of(base)
        exact = all(metric.rpartition("/")[2] in EXACT for metric in self.metrics.values())
        return {
            "section": self.section,
            "title": f"{title}{comma}{rest}",
            "unit": unit,
            "exact": exact,
            "series": list(self.metrics.items()),
        }


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
        metric = key.removeprefix("eval/")
        section, name, label = _classify(metric)
        metrics[section, name][label] = metric
    groups = []
    for (section, name), labels in metrics.items():
        groups.append(ChartGroup(section, name, dict(sorted(labels.items()))))
    return sorted(groups, key=_place)


def _classify(key: str) -> tuple[str, str, str]:
    """Return the metric's section, and the name of its chart and its label there."""
    match = TURN_METRIC.fullmatch(key)
    if match:
        turn = f"turn {match[1]}"
        name = match[2]
        if name.startswith("level/"):
            return LEVELS, f"levels of the reward, {turn}", name.removeprefix("level/")
        if name in REVISIONS:
            return COOPERATION, name, turn
        return REWARDS if name in FIRST else TURNS, name, turn
    match = CONTRIBUTION.fullmatch(key)
    if match:
        return COOPERATION, "contribution", f"agent {match[1]}"
    prefix, slash, rest = key.partition("/")
    if not slash:
        return ROLLOUT, key, ""
    if prefix == "cooperation":
        return COOPERATION, key, ""
    if prefix in ("tokens", "reward_per_token"):
        return COOPERATION, prefix, rest.replace("_", " ")
    match = AGENT_METRIC.fullmatch(key)
    if match:
        owner = f"{match[1]} {match[2]}"
        turn, slash, name = match[3].partition("/")
        if not slash:
            return AGENTS, match[3], owner
        return COOPERATION if name in CREDIT else AGENTS, f"{name}, {turn.replace('_', ' ')}", owner
    if prefix == "time":
        if rest in STEP_TIMES:
            return TIME, "seconds per step", rest
        match = AGENT_METRIC.fullmatch(rest)
        if match:
            return TIME, f"seconds per step: {match[3]}", f"{match[1]} {match[2]}"
        return TIME, key, ""
    match = DEVICE_METRIC.fullmatch(key)
    if match:
        return ROLLOUT, f"memory, device {match[1]}", match[2]
    return ROLLOUT, key, ""


def _place(group: ChartGroup) -> tuple[int, int, str]:
    """Return the sort key of a group: the names of FIRST come before others."""
    rank = FIRST.index(group.name) if group.name in FIRST else len(FIRST)
    return SECTIONS.index(group.section), rank, group.name
