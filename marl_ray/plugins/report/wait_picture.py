"""The picture of a run's last steps over time: rollouts and learners at work, and the waits between them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from marl_ray.plugins.report.chrome_trace import TRACKS
from marl_ray.telemetry.sinks import Span

STEPS = 6
"""Number of last steps in the picture."""
# Pixels: the picture, the names of the tracks, a bar, the space between two tracks, and the baseline of a name.
WIDTH = 940
LEFT = 90
BAR = 20
GAP = 8
TEXT = 14
HIDDEN = ("steps", "checkpoints")
"""Tracks on which nothing waits."""
MIN_PIXELS = 0.5
"""Minimum width of a bar; shorter spans are left out."""


@dataclass(frozen=True, slots=True)
class Bar:
    """A span in pixels; `kind` is the style class and `text` the tooltip."""

    x: float
    y: int
    width: float
    kind: str
    text: str


def wait_picture(rows: Iterable[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return the variables of the picture's template from the rows of timeline.jsonl; None without spans.

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
    tracks = ["rollouts", *sorted(learners, key=lambda track: (len(track), track))]
    start = min(span[3] for span in spans)
    end = max(span[4] for span in spans)
    # Pixels per second.
    scale = (WIDTH - LEFT) / max(end - start, 1e-6)
    titles = []
    bars = []
    for number, track in enumerate(tracks):
        y = number * (BAR + GAP)
        titles.append((track.replace("_", " "), y + TEXT))
        on_track = sorted((span for span in spans if span[0] == track), key=lambda span: span[3])
        waits_for = "rollouts"
        if track == "rollouts":
            on_track = [*_waits(on_track, start, end), *on_track]
            waits_for = "learners"
        for _, name, step, begin, finish in on_track:
            width = (finish - begin) * scale
            if width < MIN_PIXELS:
                continue
            done = f"waits for {waits_for}" if name == "wait" else name
            x = LEFT + (begin - start) * scale
            bars.append(Bar(round(x, 1), y, round(width, 1), name, f"{done}, step {step}: {finish - begin:.2f} s"))
    return {
        "steps": len({span[2] for span in spans} - {0}),
        "seconds": end - start,
        "width": WIDTH,
        "height": len(tracks) * (BAR + GAP),
        "bar_height": BAR,
        "tracks": titles,
        "bars": bars,
        "kinds": list(dict.fromkeys(bar.kind for bar in bars)),
    }


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
