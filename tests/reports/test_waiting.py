"""What is said of who waited for whom."""

from __future__ import annotations

from marl_ray.reports.waiting import waiting
from tests.credit.trees import tree_config


def row(idle: float, first: float, second: float, last: int = 1) -> dict[str, float]:
    waits = {"time/agent_0/wait": first, "time/agent_1/wait": second}
    return {"time/step": 10.0, "time/idle": idle, "time/held_up_by": last, **waits}


def test_a_slow_learner_is_named() -> None:
    told = waiting(tree_config(2, 1, 2), [row(6.0, 5.0, 1.0), row(4.0, 5.0, 1.0), row(2.0, 5.0, 1.0, last=0)])
    assert (
        told[0]
        == "Waiting: engines 40% of the time, for learners; learners for rollouts: agent 0's 50%, agent 1's 10%."
    )
    assert told[1].startswith(
        "Agent 1 was the last to publish in 83% of that: give its learner more (agents.1.resources"
    )
    assert "magrpo.max_staleness 1" in told[1]


def test_slow_rollouts_are_named() -> None:
    told = waiting(tree_config(2, 1, 2), [row(0.5, 7.0, 6.0)])
    assert told[1] == "Rollouts take longest: where the cluster has room, more resources.generator.replicas would help."


def test_where_nobody_waits_there_is_nothing_to_change() -> None:
    assert len(waiting(tree_config(2, 1, 2), [row(0.5, 0.4, 0.2)])) == 1
    assert waiting(tree_config(2, 1, 2), []) == []
    assert waiting(tree_config(2, 1, 2), [{"step": 1}]) == []
