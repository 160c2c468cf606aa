"""Placement arithmetic: slots, what fits, and the line that says what does not."""

from __future__ import annotations

import pytest

from marl_ray.cluster.plan import PlacementError, fits, make_plan, shortage
from marl_ray.config import Config, from_tree


def config(**resources: dict) -> Config:
    return from_tree({"model": {"name": "m"}, "dataset": {"name": "humaneval"}, "resources": resources}, "magrpo")


def test_a_laptop_needs_two_cores() -> None:
    plan = make_plan(config(), cluster_has_gpus=False)
    assert sum(slot.cpus for slot in plan.slots) == 2.0
    assert plan.transport == "store"
    assert fits(plan.slots, [{"CPU": 2.0}])
    assert not fits(plan.slots, [{"CPU": 1.9}])


def test_gpus_are_used_when_there_are_some() -> None:
    plan = make_plan(config(generator={"replicas": 3}), cluster_has_gpus=True)
    assert plan.transport == "nccl"
    assert sum(slot.gpus for slot in plan.slots) == 2 * (3 + 1)
    assert plan.slots[plan.index("agent 1 generator 2")].gpus == 1
    tensor_parallel = make_plan(config(generator={"tensor_parallel": 4}), cluster_has_gpus=True)
    assert tensor_parallel.slots[tensor_parallel.index("agent 0 generator 0")].gpus == 4


def test_a_fraction_puts_generator_and_learner_on_one_gpu() -> None:
    plan = make_plan(config(generator={"gpus": 0.5}, learner={"gpus": 0.5}), cluster_has_gpus=True)
    assert plan.transport == "ipc"
    assert plan.index("agent 0 generator 0") == plan.index("agent 0 learner") != plan.index("agent 1 learner")
    assert plan.slots[0].gpus == 1.0


@pytest.mark.parametrize(
    "resources",
    [
        {"generator": {"gpus": 1}, "learner": {"gpus": 0}},
        {"generator": {"gpus": 0.7}, "learner": {"gpus": 0.5}},
        {"generator": {"gpus": 0.5, "replicas": 2}, "learner": {"gpus": 0.5}},
    ],
)
def test_gpu_settings_without_a_transport_are_refused(resources: dict) -> None:
    with pytest.raises(PlacementError, match=r"resources\.(generator|learner)\.gpus"):
        make_plan(config(**resources), cluster_has_gpus=True)


def test_slots_do_not_span_nodes() -> None:
    plan = make_plan(config(generator={"cpus": 3}), cluster_has_gpus=False)
    assert not fits(plan.slots, [{"CPU": 2.0}] * 8)
    assert fits(plan.slots, [{"CPU": 4.0}, {"CPU": 4.0}])


def test_the_shortage_names_asked_available_and_settings() -> None:
    plan = make_plan(config(generator={"cpus": 8}), cluster_has_gpus=False)
    line = shortage(plan, [{"CPU": 2.0, "memory": 5.0}])
    assert "asked for CPU 17" in line
    assert "2 x generator with CPU 8" in line
    assert "free on 1 node: CPU 2." in line
    assert "resources.generator.cpus" in line
    assert "\n" not in line
