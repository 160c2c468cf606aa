"""The picture of a run's last steps over time: rollouts and learners at work, and the waits between them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

from marl_ray.plugins.report.chrome_trace import TRACKS
from marl_ray.telemetry.sinks import Span

STEPS = 6
"""Number of last steps in the picture."""
HIDDEN = ("steps", "checkpoints")
"""Tracks on which nothing waits."""
MIN_SHARE = 0.0005
"""Minimum part of the picture's time; shorter spans, below half a pixel, are left out."""


def wait_picture(rows: Iterable[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return the bars of each track from the rows of timeline.jsonl, in seconds from the begin of the picture; None
    without spans.

    The track `rollouts` waits whenever no rollout runs; a learner waits as its spans say.
    """
    spans: list[Span] = []
    for row in deque(rows, maxlen=STEPS):
        for span in row["spans"]:
            if span[0] not in HIDDEN:
                spans.append(tuple(span))
    if not spans:
        return None
    learners = {span[0] for span in spans} - TRACKS.keys()
    start = min(span[3] for span in spans)
    end = max(span[4] for span in spans)
    tracks = []
    for track in ("rollouts", *sorted(learners, key=lambda track: (len(track), track))):
        on_track = sorted((span for span in spans if span[0] == track), key=lambda span: span[3])
        if track == "rollouts":
            on_track = [*_waits(on_track, start, end), *on_track]
        bars = []
        for _, name, step, begin, finish in on_track:
            if finish - begin >= MIN_SHARE * (end - start):
                bars.append([name, step, round(begin - start, 3), round(finish - start, 3)])
        waits_for = "learners" if track == "rollouts" else "rollouts"
        tracks.append({"title": track.replace("_", " "), "waits_for": waits_for, "bars": bars})
    return {"steps": len({span[2] for span in spans} - {0}), "seconds": end - start, "tracks": tracks}


def _waits(rollouts: Iterable[Span], start: float, end: float) -> list[Span]:
    """Return the times without a rollout, before a rollout as spans of its step."""
    waits: list[Span] = []
    free = start
    """The end of all rollouts so far, which may overlap."""
    step = 0
    for _, _, step, begin, finish in rollouts:
        if begin > free:
            waits.append(("rollouts", "wait", step, free, begin))
        free = max(free, finish)
    return [*waits, ("rollouts", "wait", step, free, end)]
