"""The picture of work and waits, and the comparison of an agent's turns side by side."""

from __future__ import annotations

from typing import Any

from marl_ray.plugins.report.episode_view import _difference
from marl_ray.plugins.report.wait_picture import LEFT, WIDTH, wait_picture

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
    assert [name for name, _ in picture["tracks"]] == ["rollouts", "agent 0"]
    by_text = {bar.text: bar for bar in picture["bars"]}
    quarter = (WIDTH - LEFT) / 4
    assert by_text.keys() == {
        *("rollout, step 1: 2.00 s", "waits for learners, step 2: 1.00 s", "rollout, step 2: 1.00 s"),
        *("waits for rollouts, step 1: 2.00 s", "learn, step 1: 1.00 s", "waits for rollouts, step 2: 1.00 s"),
    }, "the sync is too short"
    held_up, learning = by_text["waits for learners, step 2: 1.00 s"], by_text["learn, step 1: 1.00 s"]
    assert (held_up.x, held_up.width) == (learning.x, learning.width) == (LEFT + 2 * quarter, quarter)
    assert held_up.y < learning.y


def test_a_run_without_spans_has_no_picture() -> None:
    assert wait_picture([]) is None
    assert wait_picture([{"step": 1, "spans": []}]) is None


def test_only_the_last_steps_are_shown() -> None:
    rows = [{"step": n, "spans": [["rollouts", "rollout", n, 10.0 * n, 10.0 * n + 5]]} for n in range(1, 21)]
    picture = wait_picture(rows)
    assert picture is not None
    assert (picture["steps"], picture["seconds"]) == (6, 55.0)


def test_turns_are_compared_side_by_side() -> None:
    before, after = "def f(x):\n    return x\n", "def f(x):\n    y = x\n    return y\n"
    assert list(_difference(before, after)) == [
        ("def f(x):", "def f(x):", True),
        ("    return x", "    y = x", False),
        (None, "    return y", False),
    ]
