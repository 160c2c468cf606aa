"""Traces of simulated runs on a virtual clock, with and without overlap of rollouts and learning."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from benchmarks import simulate
from benchmarks.simulate import Case, run_trainer
from benchmarks.simulated_durations import Pace
from marl_ray.plugins.report.command import main as report
from marl_ray.telemetry.sinks import JsonlSink, MetricStream
from tests.plugins.report.traces import check_trace, overlap

FAST = Pace(token_s=0.02, slots=16, mean_tokens=100, learn_s=0.14, optimizer_s=0.1, publish_s=0.1)
SLOW = Pace(token_s=0.02, slots=16, mean_tokens=100, learn_s=0.5, optimizer_s=0.1, publish_s=0.1)


@pytest.mark.parametrize("staleness", [0, 1, 2])
def test_spans_add_up_to_each_step(staleness: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    paths = [run_dir / f"{name}.jsonl" for name in ("metrics", "episodes", "timeline")]
    files = JsonlSink(paths[0], paths[1], done=0, timeline=paths[2])
    monkeypatch.setattr(simulate, "MetricStream", lambda sinks: MetricStream([*sinks, files]))
    case = Case((FAST, SLOW), (1, 1), staleness, tasks=4, steps=5, group=4)
    with asyncio.Runner(loop_factory=simulate.VirtualLoop) as runner:
        runner.run(run_trainer(case, tmp_path))
    tracks = check_trace(run_dir)
    lanes = [events for name, events in tracks.items() if name.startswith("rollouts")]
    rollouts: list[dict[str, Any]] = sorted((e for lane in lanes for e in lane), key=lambda event: event["ts"])
    assert [event["name"] for event in rollouts] == [f"rollout {step}" for step in range(1, 6)]
    together = max(sum(overlap(one, other) > 0 for other in rollouts) for one in rollouts)
    assert len(lanes) <= staleness + 1, "batches in progress"
    assert (together > 1) == (len(lanes) > 1) == (staleness > 0)
    learning = [event for event in tracks["learner agent_1"] if event["name"] == "learn"]
    beside = any(overlap(learn, rollout) > 0 for learn in learning for rollout in rollouts)
    assert beside, "the learner accumulates gradients while the rollout is in progress"
    size = paths[2].stat().st_size
    assert size < 5 * 5_000, f"{size} bytes for five steps"


def test_a_run_without_a_timeline_is_an_error_of_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert report([str(tmp_path), "--trace", str(tmp_path / "t.json")]) == 1
    assert "timeline.jsonl is missing or empty" in capsys.readouterr().err
