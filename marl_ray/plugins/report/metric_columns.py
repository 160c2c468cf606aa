"""The metric rows of a run as columns, which a page stores in a third of the space of rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any

from marl_ray.core.statistics import half_width, wilson_interval
from marl_ray.results.diagnostics import Rows
from marl_ray.results.returns_plot import is_number
from marl_ray.telemetry.sinks import is_evaluation

MAX_VALUES = 150_000
"""Maximum number of values of all columns together, about 1.3 MB: a page with episodes stays below 3 MB."""
AXES = ("step", "env_steps")
Column = list[float | None] | float
"""A value per row; one number for a metric that has this value in every row."""


def training_columns(rows: Rows) -> dict[str, Any]:
    """Return steps, joint samples, seconds since the start, and a column per metric of the training steps."""
    return _columns(rows, evaluations=False)


def evaluation_columns(rows: Rows) -> dict[str, Any]:
    """Return the same of the evaluations, whose metrics have no prefix here, and the intervals of their rewards."""
    columns = _columns(rows, evaluations=True)
    intervals = {}
    for metric in columns["metrics"]:
        bounds = confidence_intervals(rows, metric)
        if bounds:
            intervals[metric] = [[round_number(low), round_number(high)] for low, high in bounds]
    columns["intervals"] = intervals
    return columns


def _columns(rows: Rows, evaluations: bool) -> dict[str, Any]:
    elapsed = accumulate((row.get("time/step") or 0.0) + (row.get("time/eval") or 0.0) for row in rows)
    chosen = []
    times = []
    for row, seconds in zip(rows, elapsed, strict=True):
        if is_evaluation(row) == evaluations:
            chosen.append(row)
            times.append(seconds)
    keys: dict[str, None] = {}
    """Keys of all rows, in order of first appearance."""
    for row in chosen:
        keys |= dict.fromkeys(row)
    names = [key for key in keys if key not in AXES]
    shown = evenly(range(len(chosen)), MAX_VALUES // max(1, len(names)))
    metrics = {}
    for name in names:
        values = [chosen[index].get(name) for index in shown]
        if any(map(is_number, values)):
            metrics[name.removeprefix("eval/")] = _column(values)
    return {
        "step": [chosen[index]["step"] for index in shown],
        "samples": [chosen[index].get("env_steps", 0) for index in shown],
        "time": [round_number(times[index]) for index in shown],
        "rows": len(chosen),
        "metrics": metrics,
    }


def _column(values: Iterable[Any]) -> Column:
    column = [round_number(value) if is_number(value) else None for value in values]
    first = column[0]
    if first is not None and all(value == first for value in column):
        return first
    return column


def evenly(values: Sequence[Any], limit: int) -> Sequence[Any]:
    """Return at most `limit` values at equal distances, the last one among them.

    >>> evenly([1, 2, 3, 4, 5], 3)
    [1, 3, 5]
    """
    distance = -(-len(values) // max(1, limit))
    if distance <= 1:
        return values
    return values[::-distance][::-1]


def round_number(value: float) -> float:
    """Return the value with six significant digits, and a whole number as an integer, which is shorter in JSON."""
    rounded = float(f"{value:.6g}")
    return int(rounded) if rounded.is_integer() else rounded


def confidence_intervals(rows: Iterable[Mapping[str, Any]], metric: str) -> list[tuple[float, float]]:
    """Return the 95 % interval of each evaluation's mean reward, or of its pass rate (Wilson); empty for other metrics.

    Joint actions of one task are not independent, so the sample size is the number of tasks. With one task the
    interval is the value itself.
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
