"""Which of a run's numbers are drawn in one chart, and how. The names are those of docs/reference/metrics.md."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

from marl_ray.reports.svg_charts import Series

REWARDS, LEVELS, TURNS, AGENTS, ROLLOUT, TIME = (
    "Rewards",
    "Levels of the reward",
    "More of the turns",
    "Agents",
    "Rollout and sandbox",
    "Time",
)
FIRST = ("reward_mean", "all_passed", "expected_return", "tests_passed_rate")
"""A turn's metrics that come before the others."""
STEP_TIMES = ("step", "rollout", "learn", "sync", "idle")
INTERVAL = 1.96
"""Standard errors in half of a 95 % interval."""
OF_A_TURN = re.compile(r"turn_(\d+)/(.+)")
OF_AN_AGENT = re.compile(r"(agent|policy)_(\d+)/(.+)")
OF_A_DEVICE = re.compile(r"memory/device_(\d+)/(.+)")
DATED = ("step", "env_steps")


@dataclass(frozen=True, slots=True)
class ChartGroup:
    """A chart's place, title, and the metrics of its curves by what each is called there."""

    section: str
    title: str
    metrics: Mapping[str, str]


def chart_groups(rows: Sequence[Mapping[str, Any]]) -> list[ChartGroup]:
    """All that the rows speak of, in the order of the sections; of an evaluation's metrics those without `eval/`."""
    found: dict[tuple[str, str], dict[str, str]] = defaultdict(dict)
    for key in dict.fromkeys(key.removeprefix("eval/") for row in rows for key in row if key not in DATED):
        section, title, label = _place(key)
        found[section, title][label] = key
    order = (REWARDS, LEVELS, TURNS, AGENTS, ROLLOUT, TIME)
    made = [ChartGroup(section, title, dict(sorted(metrics.items()))) for (section, title), metrics in found.items()]
    return sorted(made, key=lambda group: (order.index(group.section), _rank(group.title)))


def curves(rows: Sequence[Mapping[str, Any]], group: ChartGroup) -> list[Series]:
    """A line for the training steps of each metric, and marks for its evaluations, over joint samples."""
    found = []
    for colour, (label, metric) in enumerate(group.metrics.items()):
        if line := points(rows, metric):
            found.append(Series(label, colour, line))
        if marks := points(rows, f"eval/{metric}"):
            found.append(Series(f"{label} held-out".strip(), colour, marks, True, intervals(rows, metric)))
    return found


def points(rows: Iterable[Mapping[str, Any]], key: str) -> list[tuple[float, float]]:
    """(joint samples, value) of the rows that have one."""
    return [(float(row.get("env_steps", 0)), float(row[key])) for row in rows if _is_number(row.get(key))]


def intervals(rows: Iterable[Mapping[str, Any]], metric: str) -> list[tuple[float, float]]:
    """95 % intervals of an evaluation's mean reward, or share of passes (Wilson's), in the order of `points`; empty for
    other metrics. Joint actions of one task are not independent, so only tasks count; one alone has no interval."""
    turn, _, name = metric.rpartition("/")
    if name not in ("reward_mean", "all_passed"):
        return []
    found = []
    for row in rows:
        value, tasks = row.get(f"eval/{metric}"), row.get("eval/episodes") or 0
        if not _is_number(value):
            continue
        deviation = row.get(f"eval/{turn}/reward_std")
        if name == "all_passed" and tasks > 1:
            found.append(_wilson(value, tasks))
        elif tasks > 1 and _is_number(deviation):
            half = INTERVAL * deviation / math.sqrt(tasks)
            found.append((value - half, value + half))
        else:
            found.append((value, value))
    return found


def _wilson(share: float, tasks: int) -> tuple[float, float]:
    """Wilson's score interval (1927), which stays within 0 and 1."""
    z = INTERVAL**2 / tasks
    middle = (share + z / 2) / (1 + z)
    half = math.sqrt(share * (1 - share) * z + z * z / 4) / (1 + z)
    return max(0.0, middle - half), min(1.0, middle + half)


def _place(key: str) -> tuple[str, str, str]:
    """Section and title of the metric's chart, and what its curve is called there."""
    if match := OF_A_TURN.fullmatch(key):
        turn, name = f"turn {match[1]}", match[2]
        if name.startswith("level/"):
            return LEVELS, turn, name.removeprefix("level/")
        return (REWARDS if name in FIRST else TURNS), name, turn
    if match := OF_AN_AGENT.fullmatch(key):
        return AGENTS, match[3], f"{match[1]} {match[2]}"
    if key.startswith("time/"):
        name = key.removeprefix("time/")
        if name in STEP_TIMES:
            return TIME, "seconds a step", name
        if match := OF_AN_AGENT.fullmatch(name):
            return TIME, f"seconds a step: {match[3]}", f"{match[1]} {match[2]}"
        return TIME, name, ""
    if match := OF_A_DEVICE.fullmatch(key):
        return ROLLOUT, f"memory of device {match[1]}, MB", match[2]
    return ROLLOUT, key, ""


def _rank(title: str) -> tuple[int, str]:
    return (FIRST.index(title) if title in FIRST else len(FIRST), title)


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and math.isfinite(value)
