"""Timing of a start and of training steps."""

from __future__ import annotations

import re
import time

import pytest

from marl_ray.telemetry.timing import StartupTimer, process_age_s


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
