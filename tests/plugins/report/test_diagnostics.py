"""Problems, wait times and device memory that the summary and the report name."""

from __future__ import annotations

import pytest

from marl_ray.config import Config
from marl_ray.plugins.report.chart_groups import chart_groups
from marl_ray.results.diagnostics import describe_device_memory, describe_wait_times, find_problems
from tests.factories import make_config


@pytest.fixture
def config() -> Config:
    return make_config(num_agents=2)


def row(idle: float, first: float, second: float, last: int = 1) -> dict[str, float]:
    """Return the times of a step of ten seconds: idle engines, the waits of both learners, the last agent to update."""
    row = {"time/step": 10.0, "time/idle": idle, "time/held_up_by": last}
    for agent, wait in enumerate((first, second)):
        row[f"time/agent_{agent}/wait"] = wait
        row[f"time/agent_{agent}/learn"] = 9.0 - wait
        row[f"time/agent_{agent}/sync"] = 1.0
    return row


def test_a_slow_learner_is_named(config: Config) -> None:
    rows = [row(6.0, 5.0, 1.0), row(4.0, 5.0, 1.0), row(2.0, 5.0, 1.0, last=0)]
    idle, advice = describe_wait_times(config, rows)
    assert idle == (
        "Idle time: engines 40% (waiting for learners); learners (waiting for rollouts): agent 0 50%, agent 1 10%."
    )
    assert advice.startswith("Agent 1 was the last to update its weights in 83% of the engines' idle time")
    assert "agents.1.resources.learner" in advice
    assert "magrpo.max_staleness 1" in advice


def test_slow_rollouts_are_named(config: Config) -> None:
    _, advice = describe_wait_times(config, [row(0.5, 7.0, 6.0)])
    assert advice == "Rollouts are the bottleneck: raise resources.generator.replicas if the cluster has room."


def test_the_longer_waits_come_first(config: Config) -> None:
    _, first, second = describe_wait_times(config, [row(2.0, 7.0, 6.0)])
    assert first.startswith("Rollouts are the bottleneck")
    assert second.startswith("Second, agent 1 was the last")


def test_without_idle_time_there_is_no_advice(config: Config) -> None:
    assert len(describe_wait_times(config, [row(0.5, 0.4, 0.2)])) == 1
    assert describe_wait_times(config, []) == []
    assert describe_wait_times(config, [{"step": 1}]) == []


def test_a_learner_that_begins_before_its_step_waits_for_at_most_its_own_time(config: Config) -> None:
    early = {**row(0.5, 10.0, 6.0), "time/step": 5.0}
    assert describe_wait_times(config, [early])[0].endswith("agent 0 100%, agent 1 60%.")


def test_idle_time_before_the_first_update_is_nobodys(config: Config) -> None:
    first = row(9.0, 1.0, 1.0)
    del first["time/held_up_by"]
    assert len(describe_wait_times(config, [first])) == 1


def test_peak_memory_of_each_phase_and_device() -> None:
    first = {"memory/device_0/play": 2000.4, "memory/device_0/asleep": 300.0, "memory/device_0/learn": 900.0}
    rows = [first, {"memory/device_0/play": 1500.0, "memory/device_1/learn": 7.0}, {"step": 3}]
    assert describe_device_memory(rows) == [
        "Peak memory of device 0: 2,000 MB during rollouts, 300 MB while engines sleep, 900 MB during learner steps.",
        "Peak memory of device 1: 7 MB during learner steps.",
    ]
    assert describe_device_memory([{"step": 1}]) == []
    [chart, _] = chart_groups(rows)
    assert (chart.as_data()["title"], chart.as_data()["unit"]) == ("Memory in use, device 0", "MB")
    assert set(chart.metrics) == {"asleep", "learn", "play"}


def test_problems_of_a_run() -> None:
    step = {
        "rollout/episodes": 2,
        "rollout/joint_samples": 8,
        "rollout/truncated_rate": 0.75,
        "rollout/too_long_prompts": 1,
        "expert/failures": 0.25,
        "sandbox/infra_errors": 2,
        "sandbox/timeouts": 3,
        "turn_1/group_std_mean": 0.0,
        "agent_0/optimizer_steps": 0,
        "agent_1/optimizer_steps": 1,
        "agent_1/skipped_steps": 1,
        "agent_1/logprob_gap": 0.2,
        "agent_1/effective_sample_size": 0.5,
    }
    problems = find_problems([step])
    expected = [
        "2 sandbox errors (not caused by a program) ended episodes early",
        "1 prompt exceeded model.max_length",
        "agent 0 has not learned",
        "agent 1: 1 update skipped",
        "agent 1: learner and sampler recently differed by 0.2 nats per token",
        "agent 1: the recent effective sample size is 0.50",
        "in 100% of the steps all rewards of every group were equal",
        "75% of recent completions were cut off",
        "25% of recent requests to the expert returned no edit",
        "3 of 8 joint actions had a test that timed out",
    ]
    assert [problem.text[: len(start)] for problem, start in zip(problems, expected, strict=True)] == expected
    assert all(problem.remedy.endswith(".") for problem in problems)
    assert find_problems([]) == []
    healthy = {"rollout/episodes": 2, "agent_0/optimizer_steps": 1, "turn_1/group_std_mean": 0.5}
    assert find_problems([healthy]) == []
