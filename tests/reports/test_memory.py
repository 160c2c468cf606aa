"""The line on what devices held."""

from __future__ import annotations

from marl_ray.reports.chart_groups import chart_groups
from marl_ray.reports.memory import memory


def test_the_most_of_each_phase_is_told_of_each_device() -> None:
    first = {"memory/device_0/play": 2000.4, "memory/device_0/asleep": 300.0, "memory/device_0/learn": 900.0}
    rows = [first, {"memory/device_0/play": 1500.0, "memory/device_1/learn": 7.0}, {"step": 3}]
    assert memory(rows) == [
        "Memory of device 0: 2,000 MB while engines play, 300 MB while all sleep, 900 MB while a learner learns.",
        "Memory of device 1: 7 MB while a learner learns.",
    ]
    assert memory([{"step": 1}]) == []
    [chart, _] = chart_groups(rows)
    assert chart.title == "memory of device 0, MB"
    assert set(chart.metrics) == {"asleep", "learn", "play"}
