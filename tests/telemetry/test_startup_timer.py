"""What a start's parts add up to."""

from __future__ import annotations

import re
import time

import pytest

from marl_ray.telemetry.startup_timer import StartupTimer, process_age_s


def test_parts_of_one_name_count_as_the_slowest_of_them() -> None:
    startup = StartupTimer()
    startup.parts = {"imports": 2.0, "learners": 5.0}
    with startup.part("learners"):
        pass
    with startup.part("checks"):
        pass
    assert list(startup.parts) == ["imports", "learners", "checks"]
    assert startup.parts["learners"] == 5.0
    assert 0 <= startup.parts["checks"] < 0.5
    assert re.fullmatch(r"\d+ s \(imports 2, learners 5\)", str(startup)), "short ones are not told"
    assert list(startup.as_json()) == ["imports", "learners", "checks", "ready"]


def test_a_part_that_fails_is_none() -> None:
    startup = StartupTimer()
    with pytest.raises(ValueError, match="no"), startup.part("Ray"):
        raise ValueError("no")
    assert startup.parts["Ray"] == 0.0


def test_it_begins_with_the_process() -> None:
    age = process_age_s()
    assert age > 0
    assert age <= StartupTimer().seconds < age + 60
    assert age < time.clock_gettime(time.CLOCK_BOOTTIME)
