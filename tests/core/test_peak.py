"""The largest value since the last look."""

from __future__ import annotations

from marl_ray.core.peak import Peak


def test_a_peak_is_taken_once_and_the_present_depth_stays() -> None:
    peak = Peak()
    assert peak.take() == 0
    for depth in (3, 7, 2):
        peak.note(depth)
    assert peak.take() == 7
    assert peak.take() == 2, "the present depth"
    peak.note(0)
    assert peak.take() == 2
    assert peak.take() == 0
