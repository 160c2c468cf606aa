"""A check of the trace of a run, for simulated and for real runs."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from marl_ray.plugins.report.command import main as report
from marl_ray.telemetry.sinks import is_evaluation, read_rows


def check_trace(run_dir: Path) -> dict[str, list[dict[str, Any]]]:
    """Check that a learner's parts add up to each of its steps and to each step of the run, and return the tracks."""
    assert report([str(run_dir), "--trace", str(run_dir / "trace.json")]) == 0
    events = json.loads((run_dir / "trace.json").read_text())["traceEvents"]
    names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert len(set(names.values())) == len(names)
    tracks = {name: [e for e in events if e["ph"] == "X" and e["tid"] == thread] for thread, name in names.items()}
    of_run = sorted(tracks["steps"], key=lambda event: event["ts"])
    evaluations = [event for events in tracks.values() for event in events if event["name"] == "evaluation"]
    rows = [row for row in read_rows(run_dir / "metrics.jsonl") if not is_evaluation(row)]
    for event, row in zip(of_run, rows, strict=True):
        evaluated = sum(overlap(event, other) for other in evaluations)
        assert (event["dur"] - evaluated) / 1e6 == pytest.approx(row["time/step"], rel=0.01)
    learners = [name for name in tracks if name.startswith("learner ")]
    assert learners
    for name in learners:
        whole = [event for event in tracks[name] if event["name"].startswith("step ")]
        parts = sorted((event for event in tracks[name] if event not in whole), key=lambda event: event["ts"])
        assert {"wait", "learn", "sync"} <= {event["name"] for event in parts} <= {"wait", "learn", "sync", "save"}
        assert len(whole) == len(rows)
        start = parts[0]["ts"]  # a learner may end before the slowest one
        active = {"ts": start, "dur": parts[-1]["ts"] + parts[-1]["dur"] - start}
        for event in whole:
            assert overlap(event, active) == event["dur"]
        for event in (*whole, *of_run):
            assert sum(overlap(event, part) for part in parts) == pytest.approx(overlap(event, active), rel=0.01)
        assert all(first["ts"] + first["dur"] <= second["ts"] + 2 for first, second in pairwise(parts))
    return tracks


def overlap(first: dict[str, Any], second: dict[str, Any]) -> float:
    """Return the duration of the time that two events share, in microseconds."""
    end = min(first["ts"] + first["dur"], second["ts"] + second["dur"])
    return max(0.0, end - max(first["ts"], second["ts"]))
