"""The wall time of each step, divided into parts that add up: rollouts, learners, both at once, and the rest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from marl_ray.plugins.report.chrome_trace import TRACKS
from marl_ray.plugins.report.metric_columns import evenly, round_number
from marl_ray.telemetry.sinks import Span

PARTS = ("evaluation", "rollout", "rollout and learn", "learn", "sync", "save", "other")
"""Parts of a step in the order of the chart."""
MAX_STEPS = 2000
"""Maximum number of steps in the chart."""


def time_parts(rows: Iterable[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return the seconds of each part by step, from the rows of timeline.jsonl; None without spans.

    At each moment exactly one part counts. The times of metrics.jsonl overlap: learners work during rollouts.
    """
    spans: list[Span] = []
    windows: list[Span] = []
    for row in rows:
        for span in row["spans"]:
            if span[0] == "steps":
                windows.append(tuple(span))
            elif span[0] != "checkpoints" and span[1] != "wait":
                spans.append(tuple(span))
    windows.sort(key=lambda window: window[3])
    if not windows:
        return None
    track, name, step, begin, end = windows[-1]
    # The last evaluation and the export of the models follow the last step.
    windows[-1] = (track, name, step, begin, max([end, *(span[4] for span in spans)]))
    seconds = _divide(windows, spans)
    steps = evenly(range(len(windows)), MAX_STEPS)
    parts = {}
    for part in PARTS:
        values = [round_number(seconds[index][part]) for index in steps]
        if any(values):
            parts[part] = values
    total = {}
    for part in parts:
        total[part] = round_number(sum(of_step[part] for of_step in seconds))
    return {"step": [windows[index][2] for index in steps], "parts": parts, "total": total}


def _divide(windows: Sequence[Span], spans: Sequence[Span]) -> list[dict[str, float]]:
    """Return the seconds of each part within each window, by a sweep over all begins and ends in order of time."""
    events: list[tuple[float, int, str]] = []
    for track, name, _, begin, end in spans:
        kind = name if track not in TRACKS or name == "evaluation" else "rollout"
        events.append((begin, 1, kind))
        events.append((end, -1, kind))
    events.sort()
    seconds = [dict.fromkeys(PARTS, 0.0) for _ in windows]
    running: Counter[str] = Counter()
    position = 0
    for window, (_, _, _, begin, end) in zip(seconds, windows, strict=True):
        now = begin
        while position < len(events) and events[position][0] < end:
            moment, change, kind = events[position]
            position += 1
            if moment > now:
                window[_part(running)] += moment - now
                now = moment
            running[kind] += change
        window[_part(running)] += max(0.0, end - now)
    return seconds


def _part(running: Mapping[str, int]) -> str:
    """Return the part that counts while these kinds of spans run."""
    if running["evaluation"] > 0:
        return "evaluation"
    if running["rollout"] > 0:
        return "rollout and learn" if running["learn"] > 0 else "rollout"
    for part in ("learn", "sync", "save"):
        if running[part] > 0:
            return part
    return "other"
