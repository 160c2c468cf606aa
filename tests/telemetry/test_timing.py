"""Timing of a start and of training steps."""

from __future__ import annotations

import asyncio
import re
import time

import pytest

from benchmarks.simulated_actors import VirtualLoop
from marl_ray.core.concurrency import now
from marl_ray.results.diagnostics import describe_wait_times
from marl_ray.telemetry.metrics import MetricRow
from marl_ray.telemetry.timing import StartupTimer, Timeline, process_age_s
from tests.factories import make_config


def test_of_parts_with_one_name_the_slowest_counts() -> None:
    startup = StartupTimer()
    startup.parts = {"imports": 2.0, "learners": 5.0}
    with startup.part("learners"):
        pass
    with startup.part("checks"):
        pass
    assert list(startup.parts) == ["imports", "learners", "checks"]
    assert startup.parts["learners"] == 5.0
    assert 0 <= startup.parts["checks"] < 0.5
    assert re.fullmatch(r"\d+ s \(imports 2, learners 5\)", str(startup)), "short parts are not printed"
    assert list(startup.as_json()) == ["imports", "learners", "checks", "ready"]


def test_a_failed_part_has_no_time() -> None:
    startup = StartupTimer()
    with pytest.raises(ValueError, match="no"), startup.part("Ray"):
        raise ValueError("no")
    assert startup.parts["Ray"] == 0.0


def test_the_timer_starts_with_the_process() -> None:
    age = process_age_s()
    assert age > 0
    assert age <= StartupTimer().seconds < age + 60
    assert age < time.clock_gettime(time.CLOCK_BOOTTIME)


def test_idle_time_is_a_part_of_its_own_step() -> None:
    # A resumed run reads two batches from its log, while its engines have no work, and then rolls out a third.
    config = make_config(num_agents=2)

    async def run() -> list[MetricRow]:
        timeline = Timeline(config.policies)
        rows = []
        for step in range(3):
            if step == 2:
                timeline.start_rollout(step)
                await asyncio.sleep(1.0)
                timeline.finish_rollout(step)
            for policy in config.policies:
                timeline.start_learner_step(policy)
                await asyncio.sleep(4.0 if step < 2 else 0.5)
                timeline.finish_learner_step(step, policy, now(), [])
            rows.append({"step": step + 1, **timeline.row(step)})
            timeline.start_rollout()
            await asyncio.sleep(3.0)
            timeline.finish_rollout()
        return rows

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        rows = runner.run(run())
    assert [row["time/idle"] for row in rows] == pytest.approx([8.0, 8.0, 1.0])
    assert [row["time/step"] for row in rows] == pytest.approx([8.0, 8.0, 2.0]), "evaluations are left out"
    assert [row["time/held_up_by"] for row in rows] == [1, 1, 1]
    for part in (rows, rows[1:], rows[2:]):
        share = describe_wait_times(config, part)[0].split("engines ")[1].split("%")[0]
        assert 50 <= int(share) <= 100
