"""The picture of work and waits, and the division of each step's time."""

from __future__ import annotations

from typing import Any

import pytest

from marl_ray.plugins.report.time_parts import time_parts
from marl_ray.plugins.report.wait_picture import wait_picture

SPANS: list[list[Any]] = [
    ["rollouts", "rollout", 1, 100.0, 102.0],
    ["agent_0", "wait", 1, 100.0, 102.0],
    ["agent_0", "learn", 1, 102.0, 103.0],
    ["agent_0", "sync", 1, 103.0, 103.0001],
    ["steps", "step", 1, 90.0, 103.0],
    ["rollouts", "rollout", 2, 103.0, 104.0],
    ["agent_0", "wait", 2, 103.0, 104.0],
]


def test_rollouts_and_learners_wait_for_each_other() -> None:
    picture = wait_picture([{"step": 1, "spans": SPANS[:5]}, {"step": 2, "spans": SPANS[5:]}])
    assert picture is not None
    rollouts, agent = picture["tracks"]
    assert (rollouts["title"], rollouts["waits_for"]) == ("rollouts", "learners")
    assert rollouts["bars"] == [["wait", 2, 2.0, 3.0], ["rollout", 1, 0.0, 2.0], ["rollout", 2, 3.0, 4.0]]
    assert (agent["title"], agent["waits_for"]) == ("agent 0", "rollouts")
    assert agent["bars"] == [["wait", 1, 0.0, 2.0], ["learn", 1, 2.0, 3.0], ["wait", 2, 3.0, 4.0]], "sync is too short"
    assert picture["seconds"] == 4.0


def test_a_run_without_spans_has_no_picture() -> None:
    assert wait_picture([]) is None
    assert wait_picture([{"step": 1, "spans": []}]) is None
    assert time_parts([{"step": 1, "spans": []}]) is None


def test_only_the_last_steps_are_shown() -> None:
    rows = [{"step": n, "spans": [["rollouts", "rollout", n, 10.0 * n, 10.0 * n + 5]]} for n in range(1, 21)]
    picture = wait_picture(rows)
    assert picture is not None
    assert (picture["steps"], picture["seconds"]) == (6, 55.0)


def test_the_parts_of_a_step_add_up_to_its_time() -> None:
    spans = [
        ["steps", "step", 1, 0.0, 10.0],
        ["rollouts", "evaluation", 0, 0.0, 1.0],
        ["rollouts", "rollout", 1, 1.0, 6.0],
        ["agent_0", "wait", 1, 0.0, 4.0],
        ["agent_0", "learn", 1, 4.0, 8.0],
        ["agent_1", "learn", 1, 4.0, 7.0],
        ["agent_0", "sync", 1, 8.0, 9.0],
        ["checkpoints", "write agent_0", 1, 0.0, 10.0],
        ["steps", "step", 2, 10.0, 12.0],
        ["rollouts", "rollout", 2, 9.5, 11.0],
        ["rollouts", "evaluation", 2, 12.0, 15.0],
    ]
    divided = time_parts([{"step": 1, "spans": spans}])
    assert divided is not None
    assert divided["step"] == [1, 2]
    assert divided["parts"] == {
        "evaluation": [1, 3],
        "rollout": [3.5, 1],
        "rollout and learn": [2, 0],
        "learn": [2, 0],
        "sync": [1, 0],
        "other": [0.5, 1],
    }
    assert sum(divided["total"].values()) == pytest.approx(15.0), "the last evaluation follows the last step"
