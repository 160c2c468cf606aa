"""The timeline of a run as a trace for Perfetto (https://ui.perfetto.dev) or chrome://tracing.

Tracks: the steps of the run, as metrics.jsonl counts them; the rollouts, and the writes of checkpoints, on as many
tracks as overlap; and one track per learner, on which each step contains its parts (wait, learn, sync, save) without
gaps.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from marl_ray.core.errors import UserError
from marl_ray.storage.run_folder import RunFolder
from marl_ray.telemetry.sinks import Span, read_rows

TRACKS = {"steps": "steps", "rollouts": "rollouts", "checkpoints": "checkpoints"}
"""Titles of the tracks that are no learners."""


def trace_of(folder: RunFolder) -> str:
    """Return the trace of a run in Chrome's JSON format. Raises UserError if the run has no timeline."""
    spans = read_spans(folder.timeline) if folder.timeline.exists() else []
    if not spans:
        raise UserError(f"{folder.timeline} is missing or empty: this version has not run a step of {folder.path.name}")
    events = [_metadata(folder.path.name)]
    tracks = [*TRACKS, *sorted({span[0] for span in spans} - TRACKS.keys())]
    thread = 0
    for track in tracks:
        on_track = [span for span in spans if span[0] == track]
        on_track.sort(key=lambda span: (span[3], span[4]))
        title = TRACKS.get(track, f"learner {track}")
        for number, lane in enumerate(_lanes(on_track), start=1):
            thread += 1
            events.append(_metadata(title if number == 1 else f"{title} {number}", thread))
            # A step comes before its parts, which lie within it.
            steps = [] if track in TRACKS else _steps_of(lane)
            for span in (*steps, *lane):
                events.append(_event(span, thread))
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"})


def read_spans(path: Path) -> list[Span]:
    """Return the spans in timeline.jsonl."""
    spans: list[Span] = []
    for row in read_rows(path):
        spans += map(tuple, row["spans"])
    return spans


def _lanes(spans: Iterable[Span]) -> list[list[Span]]:
    """Return spans that are sorted by their begin in as few lists without overlaps as possible."""
    lanes: list[list[Span]] = []
    for span in spans:
        for lane in lanes:
            if lane[-1][4] <= span[3]:
                lane.append(span)
                break
        else:
            lanes.append([span])
    return lanes


def _steps_of(parts: Sequence[Span]) -> list[Span]:
    """Return one span per step of a learner, around its parts."""
    whole: dict[tuple[int, int], Span] = {}
    repeated = 0
    previous = 0
    for track, _, step, begin, end in parts:
        repeated += step < previous  # a resumed run repeats steps
        previous = step
        if (repeated, step) in whole:
            begin = whole[repeated, step][3]
        whole[repeated, step] = (track, "step", step, begin, end)
    return list(whole.values())


def _event(span: Span, thread: int) -> dict[str, Any]:
    """Return a complete event. Times are in microseconds."""
    track, name, step, begin, end = span
    start = round(begin * 1e6)
    title = f"{name} {step}" if name in ("step", "rollout") else name
    return {
        "name": title,
        "cat": track,
        "ph": "X",
        "pid": 1,
        "tid": thread,
        "ts": start,
        "dur": round(end * 1e6) - start,
        "args": {"step": step} if step else {},
    }


def _metadata(name: str, thread: int = 0) -> dict[str, Any]:
    """Return the event that names the run (thread 0), or a track."""
    kind = "thread_name" if thread else "process_name"
    return {"name": kind, "ph": "M", "pid": 1, "tid": thread, "args": {"name": name}}
