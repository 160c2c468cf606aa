"""The first screen of a run's page in numbers: four tiles, the levels of the reward, and one warning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from marl_ray.cooperation.recombined_answers import PREFIX
from marl_ray.cooperation.run_sentences import RECENT_STEPS
from marl_ray.plugins.report.metric_columns import confidence_intervals
from marl_ray.results.diagnostics import Rows, find_problems
from marl_ray.results.returns_plot import is_number
from marl_ray.telemetry.sinks import is_evaluation

MIN_STEPS_OF_WARNINGS = 10
"""Warnings about fewer steps would speak of noise."""
LEVEL = "level/"
AGREEMENT = f"{PREFIX}agreement"
"""Share of joint answers that keep their reward with other answers of the partners."""
GAIN = f"{PREFIX}over_one_agent_twice"
"""Reward that partners add over one agent asked twice."""


def overview(rows: Rows, num_turns: int) -> dict[str, Any]:
    """Return the numbers of the first screen; None for a quantity that the run does not measure."""
    reward = f"turn_{num_turns}/reward_mean"
    return {
        "reward": before_and_after(rows, reward),
        "solved": before_and_after(rows, f"turn_{num_turns}/all_passed"),
        "agreement": _cooperation(rows, AGREEMENT),
        "partners": _cooperation(rows, GAIN),
        "speed": _speed(rows),
        "levels": _levels(rows, num_turns),
        "warning": _warning(rows),
    }


def before_and_after(rows: Rows, metric: str) -> dict[str, Any] | None:
    """Return a metric of held-out tasks at the first and the last evaluation, with the interval of the last one.

    Evaluations of another number of tasks than the last one are no comparison. A run without evaluations has the means
    of its first and last training steps instead, which `held_out` tells.
    """
    evaluations = [row for row in rows if is_number(row.get(f"eval/{metric}"))]
    values = [row[metric] for row in rows if is_number(row.get(metric))]
    # Of short runs, the first half and the last half.
    window = max(1, min(RECENT_STEPS, len(values) // 2))
    training_now = fmean(values[-window:]) if values else None
    if evaluations:
        last = evaluations[-1]
        comparable = [row for row in evaluations if row.get("eval/episodes") == last.get("eval/episodes")]
        first = comparable[0]
        numbers: dict[str, Any] = {
            "metric": metric,
            "held_out": True,
            "tasks": last.get("eval/episodes"),
            "step": last["step"],
            "before": None,
            "after": last[f"eval/{metric}"],
            "training_now": training_now,
        }
        if first is not last:
            numbers["before"] = first[f"eval/{metric}"]
        intervals = confidence_intervals([last], metric)
        numbers["interval"] = intervals[0] if intervals else None
        return numbers
    if not values:
        return None
    return {
        "metric": metric,
        "held_out": False,
        "tasks": None,
        "step": rows[-1]["step"],
        "before": fmean(values[:window]) if len(values) > 1 else None,
        "after": training_now,
        "training_now": training_now,
        "interval": None,
    }


def _cooperation(rows: Rows, name: str) -> dict[str, Any] | None:
    """Return a measure of cooperation in its first row, and its mean over its last rows."""
    for prefix in ("", "eval/"):
        values = [row[prefix + name] for row in rows if is_number(row.get(prefix + name))]
        if values:
            recent = values[-RECENT_STEPS:]
            return {
                "metric": name,
                "held_out": bool(prefix),
                "first": values[0] if len(values) > 1 else None,
                "recent": fmean(recent),
                "recent_rows": len(recent),
            }
    return None


def _speed(rows: Rows) -> dict[str, Any] | None:
    """Return seconds and tokens per second of the last training steps, and the seconds of all steps."""
    steps = [row for row in rows if row.get("time/step")]
    if not steps:
        return None
    recent = steps[-RECENT_STEPS:]
    seconds = sum(row["time/step"] for row in recent)
    return {
        "steps": len(recent),
        "step_seconds": seconds / len(recent),
        "tokens_per_s": sum(row.get("rollout/tokens") or 0 for row in recent) / seconds,
        "training_seconds": sum(row["time/step"] for row in steps),
        "evaluation_seconds": sum(row.get("time/eval") or 0.0 for row in rows),
    }


def _levels(rows: Rows, num_turns: int) -> dict[str, Any] | None:
    """Return the mean levels of the last turn's reward before and after; None for an environment without levels."""
    for prefix, held_out in (("eval/", True), ("", False)):
        start = f"{prefix}turn_{num_turns}/{LEVEL}"
        with_levels = [row for row in rows if any(key.startswith(start) for key in row)]
        if with_levels and is_evaluation(with_levels[0]) == held_out:
            before = _level_means(with_levels[:1], start)
            after = _level_means(with_levels[-1:], start)
            if not held_out:
                before = _level_means(with_levels[:RECENT_STEPS], start)
                after = _level_means(with_levels[-RECENT_STEPS:], start)
            names = dict.fromkeys([*before, *after])
            return {
                "held_out": held_out,
                "step": with_levels[-1]["step"],
                "names": list(names),
                "before": [before.get(name, 0.0) for name in names] if len(with_levels) > 1 else None,
                "after": [after.get(name, 0.0) for name in names],
            }
    return None


def _level_means(rows: Sequence[Mapping[str, Any]], start: str) -> dict[str, float]:
    values: dict[str, list[float]] = {}
    for row in rows:
        for key, value in row.items():
            if key.startswith(start) and is_number(value):
                values.setdefault(key.removeprefix(start), []).append(value)
    return {name: fmean(numbers) for name, numbers in values.items()}


def _warning(rows: Rows) -> dict[str, Any] | None:
    """Return the most severe problem and its remedy."""
    if max((row["step"] for row in rows), default=0) < MIN_STEPS_OF_WARNINGS:
        return None
    problems = find_problems(rows)
    if not problems:
        return None
    return {
        "text": problems[0].text,
        "remedy": problems[0].remedy,
        "others": list(map(str, problems[1:])),
    }
