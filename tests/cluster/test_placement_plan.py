"""Placement arithmetic: slots, what fits, and the line that says what does not."""

from __future__ import annotations

from typing import Any

import pytest

from marl_ray.cluster.placement_plan import (
    PlacementError,
    PlacementPlan,
    describe_demands,
    describe_shortage,
    fits,
    generator_plan,
    make_plan,
)
from marl_ray.config import Config, from_tree
from marl_ray.core.ids import ActorId, PolicyId

LEARNERS = [ActorId("learner", PolicyId((0,))), ActorId("learner", PolicyId((1,)))]


def config(agents: list[Any] | None = None, **resources: Any) -> Config:
    tree = {"model": {"name": "m"}, "dataset": {"name": "humaneval"}, "resources": resources, "agents": agents}
    return from_tree(tree, "magrpo")


def test_a_laptop_needs_two_cores() -> None:
    plan = make_plan(config(), cluster_has_gpus=False)
    assert sum(slot.cpus for slot in plan.slots) == 2.0
    assert [agent.transport for agent in plan.agents] == ["store", "store"]
    assert fits(plan.slots, [{"CPU": 2.0}])
    assert not fits(plan.slots, [{"CPU": 1.9}])


def test_gpus_are_used_when_there_are_some() -> None:
    plan = make_plan(config(generator={"replicas": 3}), cluster_has_gpus=True)
    assert [agent.transport for agent in plan.agents] == ["nccl", "nccl"]
    assert sum(slot.gpus for slot in plan.slots) == 2 * (3 + 1)
    assert plan.slots[plan.index(ActorId("generator", PolicyId((1,)), 2))].gpus == 1
    tensor_parallel = make_plan(config(generator={"tensor_parallel": 4}), cluster_has_gpus=True)
    assert tensor_parallel.slots[tensor_parallel.index(ActorId("generator", PolicyId((0,)), 0))].gpus == 4


def test_a_fraction_puts_generator_and_learner_on_one_gpu() -> None:
    plan = make_plan(config(generator={"gpus": 0.5}, learner={"gpus": 0.5}), cluster_has_gpus=True)
    assert [agent.transport for agent in plan.agents] == ["ipc", "ipc"]
    assert plan.index(ActorId("generator", PolicyId((0,)), 0)) == plan.index(LEARNERS[0]) != plan.index(LEARNERS[1])
    assert plan.slots[0].gpus == 1.0


def test_each_rank_of_a_learner_has_a_place_of_its_own() -> None:
    agents = [{"name": "m", "resources": {"learner": {"ranks": 3, "cpus": 2}}}, "m"]
    plan = make_plan(config(agents), cluster_has_gpus=True)
    ranks = [ActorId("learner", PolicyId((0,)), rank) for rank in range(3)]
    assert [str(rank) for rank in ranks] == ["agent 0 learner", "agent 0 learner rank 1", "agent 0 learner rank 2"]
    places = [plan.index(rank) for rank in ranks]
    assert len(set(places)) == 3
    assert all(plan.slots[place].resources() == {"CPU": 2, "GPU": 1} for place in places)
    nodes = [{"CPU": 5, "GPU": 3}, {"CPU": 5, "GPU": 3}]
    assert fits(plan.slots, nodes), "on several nodes too"
    assert not fits(plan.slots, [{"CPU": 20, "GPU": 5}])
    with pytest.raises(PlacementError, match=r"with resources.generator.replicas and resources.learner.ranks 1$"):
        make_plan(config(generator={"gpus": 0.5}, learner={"ranks": 2}), cluster_has_gpus=True)


def test_agents_of_one_policy_have_one_learner_and_one_group_of_generators() -> None:
    plan = make_plan(config([{}, {}, {"policy": 0}], generator={"replicas": 2}), cluster_has_gpus=False)
    both, own = PolicyId((0, 2)), PolicyId((1,))
    owners = [owner for slot in plan.slots for owner in slot.owners if owner.kind != "sandbox"]
    assert owners == [
        *(ActorId("generator", both, replica) for replica in range(2)),
        ActorId("learner", both),
        *(ActorId("generator", own, replica) for replica in range(2)),
        ActorId("learner", own),
    ]
    assert list(map(str, owners[1:4])) == ["policy 0 generator 1", "policy 0 learner", "agent 1 generator 0"]
    assert len(plan.agents) == 3


def test_policies_that_share_a_model_learn_in_one_place() -> None:
    sharing = {"magrpo.num_agents": 3, "lora.rank": 4, "lora.share_base": True}

    def plan(gpus: bool = False, **changes: Any) -> PlacementPlan:
        tree = {"model": {"name": "m"}, "dataset": {"name": "humaneval"}}
        return make_plan(from_tree(tree, "magrpo", sharing | changes), cluster_has_gpus=gpus)

    config = from_tree({"model": {"name": "m"}, "dataset": {"name": "humaneval"}}, "magrpo", sharing)
    assert config.learner_policies(PolicyId((1,))) == config.policies
    both = [owner for slot in plan().slots for owner in slot.owners if owner.kind == "learner"]
    assert both == [ActorId("learner", None)]
    assert str(both[0]) == "learner 0"
    some = plan(gpus=True, **{"magrpo.num_agents": None, "agents": ["n", "m", "m"]})
    learners = [(str(owner), slot.gpus) for slot in some.slots for owner in slot.owners if owner.kind == "learner"]
    assert learners == [("agent 0 learner", 1), ("learner 1", 1)]
    with pytest.raises(PlacementError, match=r"a learner of several policies has a GPU of its own"):
        plan(gpus=True, **{"resources.generator.gpus": 0.5, "resources.learner.gpus": 0.5})


def test_agents_have_resources_of_their_own() -> None:
    shared = {"name": "m", "resources": {"generator": {"gpus": 0.5}, "learner": {"gpus": 0.5, "cpus": 2}}}
    plan = make_plan(config(["m", shared], generator={"replicas": 1, "cpus": 3}), cluster_has_gpus=True)
    assert [agent.transport for agent in plan.agents] == ["nccl", "ipc"]
    assert [slot.owners for slot in plan.slots[:3]] == [
        (ActorId("generator", PolicyId((0,)), 0),),
        (LEARNERS[0],),
        (ActorId("generator", PolicyId((1,)), 0), LEARNERS[1]),
    ]
    assert [(slot.cpus, slot.gpus) for slot in plan.slots[:3]] == [(3, 1), (0.25, 1), (5, 1)]
    wrong = {"name": "m", "resources": {"learner": {"gpus": 0}}}
    with pytest.raises(
        PlacementError, match=r"agents\.1\.resources\.generator\.gpus is 1 and agents\.1\.resources\.le"
    ):
        make_plan(config(["m", wrong]), cluster_has_gpus=True)


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


def test_generators_and_learners_that_take_turns_have_one_device() -> None:
    plan = make_plan(config(colocate=True), cluster_has_gpus=True)
    assert [(of.transport, of.device) for of in plan.agents] == [("ipc", 0), ("ipc", 1)]
    assert [slot.gpus for slot in plan.slots[:2]] == [1, 1]
    assert [owner.kind for owner in plan.slots[1].owners] == ["generator", "learner"]

    thirds = {"gpus": 1 / 3, "gpu_memory_utilization": 0.3, "cpus": 2}
    plan = make_plan(config([{}] * 4, colocate=True, generator=thirds), cluster_has_gpus=True)
    assert [of.device for of in plan.agents] == [0, 0, 0, 1]
    assert [(len(slot.owners), slot.cpus, slot.gpus) for slot in plan.slots[:2]] == [(6, 6.75, 1), (2, 2.25, 1)]
    assert sum(6 * [plan.agents[0].generator_gpus]) <= 1
    alone = generator_plan(config([{}] * 4, colocate=True, generator=thirds), 1, cluster_has_gpus=True)
    assert [(len(slot.owners), slot.gpus) for slot in alone.slots] == [(1, 1 / 3)]
    assert alone.agents[1].device is None, "nobody learns"


def test_without_gpus_all_take_turns_in_the_memory_of_a_node() -> None:
    for has_gpus, resources in ((False, {}), (True, {"generator": {"gpus": 0}})):
        plan = make_plan(config(colocate=True, **resources), has_gpus)
        assert [(of.transport, of.device, of.generator_gpus) for of in plan.agents] == [("store", 0, 0)] * 2
        assert [(len(slot.owners), slot.gpus) for slot in plan.slots] == [(4, 0), (1, 0), (1, 0)]


def test_engines_of_one_device_share_its_memory() -> None:
    with pytest.raises(PlacementError, match=r"agent 0 and agent 1 play on .* sum to 1\.7: lower it to 0\.47, or give"):
        make_plan(config(colocate=True, generator={"gpus": 0.5}), cluster_has_gpus=True)


def test_slots_do_not_span_nodes() -> None:
    plan = make_plan(config(generator={"cpus": 3}), cluster_has_gpus=False)
    assert not fits(plan.slots, [{"CPU": 2.0}] * 8)
    assert fits(plan.slots, [{"CPU": 4.0}, {"CPU": 4.0}])


def test_the_shortage_names_asked_available_and_settings() -> None:
    plan = make_plan(config(generator={"cpus": 8}), cluster_has_gpus=False)
    line = describe_shortage(plan, [{"CPU": 2.0, "memory": 5.0}])
    assert "asked for CPU 17" in line
    assert "2 x generator with CPU 8" in line
    assert "free on 1 node: CPU 2." in line
    assert "resources.generator.cpus" in line
    assert "\n" not in line


def test_demands_with_and_without_gpus() -> None:
    line = describe_demands(config(generator={"gpus": 0.5}, learner={"gpus": 0.5}))
    assert "2 x generator + learner with CPU 0.75 GPU 1, 2 x sandbox with CPU 0.25)" in line
    assert "without GPUs impossible" in describe_demands(config(generator={"tensor_parallel": 2}))
