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
# Pixels: the picture, the names of the tracks, a bar, and the space between two tracks.
WIDTH = 940
LEFT = 90
BAR = 20
GAP = 8
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
    last = deque(rows, maxlen=STEPS)
    spans: list[Span] = [tuple(span) for row in last for span in row["spans"] if span[0] not in HIDDEN]
    if not spans:
        return None
    tracks = ["rollouts", *sorted({span[0] for span in spans} - TRACKS.keys(), key=lambda track: (len(track), track))]
    start, end = min(span[3] for span in spans), max(span[4] for span in spans)
    scale = (WIDTH - LEFT) / max(end - start, 1e-6)
    bars = []
    for number, track in enumerate(tracks):
        own = sorted((span for span in spans if span[0] == track), key=lambda span: span[3])
        for _, name, step, begin, finish in own if track != "rollouts" else [*_waits(own, start, end), *own]:
            if (finish - begin) * scale < MIN_PIXELS:
                continue
            waiting = f"waits for {'learners' if track == 'rollouts' else 'rollouts'}"
            text = f"{waiting if name == 'wait' else name}, step {step}: {finish - begin:.2f} s"
            x = LEFT + (begin - start) * scale
            bars.append(Bar(round(x, 1), number * (BAR + GAP), round((finish - begin) * scale, 1), name, text))
    return {
        "steps": len({span[2] for span in spans} - {0}),
        "seconds": end - start,
        "width": WIDTH,
        "height": len(tracks) * (BAR + GAP),
        "bar_height": BAR,
        "tracks": [(track.replace("_", " "), number * (BAR + GAP) + 14) for number, track in enumerate(tracks)],
        "bars": bars,
        "kinds": list(dict.fromkeys(bar.kind for bar in bars)),
    }


def _waits(rollouts: Iterable[Span], start: float, end: float) -> list[Span]:
    """Return the times without a rollout, before a rollout as spans of its step."""
    waits: list[Span] = []
    free, step = start, 0
    for _, _, step, begin, finish in rollouts:
        if begin > free:
            waits.append(("rollouts", "wait", step, free, begin))
        free = max(free, finish)
    return [*waits, ("rollouts", "wait", step, free, end)]
