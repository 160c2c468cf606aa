"""Placement arithmetic: bundles, packing onto nodes, and the message for a shortage."""

from __future__ import annotations

from typing import Any

import pytest

from marl_ray.cluster.bundles import pack
from marl_ray.cluster.placement_plan import (
    PlacementError,
    PlacementPlan,
    generator_plan,
)
from marl_ray.cluster.resource_text import describe_demands, describe_shortage
from marl_ray.config import Config
from marl_ray.core.ids import ActorId, PolicyId
from tests.factories import make_config, plan_of

LEARNERS = [ActorId("learner", PolicyId((0,))), ActorId("learner", PolicyId((1,)))]


def with_resources(agents: list[Any] | None = None, **resources: Any) -> Config:
    return make_config(sections={"resources": resources, "agents": agents})


def test_default_resources_fit_on_two_cores() -> None:
    plan = plan_of(with_resources(), cluster_has_gpus=False)
    assert sum(bundle.cpus for bundle in plan.bundles) == 2.0
    assert [agent.transport for agent in plan.agents] == ["store", "store"]
    assert pack(plan.bundles, [{"CPU": 2.0}]) is not None
    assert pack(plan.bundles, [{"CPU": 1.9}]) is None


def test_gpus_of_the_cluster_are_used_by_default() -> None:
    plan = plan_of(with_resources(generator={"replicas": 3}), cluster_has_gpus=True)
    assert [agent.transport for agent in plan.agents] == ["nccl", "nccl"]
    assert sum(bundle.gpus for bundle in plan.bundles) == 2 * (3 + 1)
    assert plan.bundles[plan.index(ActorId("generator", PolicyId((1,)), 2))].gpus == 1
    tensor_parallel = plan_of(with_resources(generator={"tensor_parallel": 4}), cluster_has_gpus=True)
    assert tensor_parallel.bundles[tensor_parallel.index(ActorId("generator", PolicyId((0,)), 0))].gpus == 4


def test_fractional_gpus_place_generator_and_learner_on_one_gpu() -> None:
    plan = plan_of(with_resources(generator={"gpus": 0.5}, learner={"gpus": 0.5}), cluster_has_gpus=True)
    assert [agent.transport for agent in plan.agents] == ["ipc", "ipc"]
    assert plan.index(ActorId("generator", PolicyId((0,)), 0)) == plan.index(LEARNERS[0]) != plan.index(LEARNERS[1])
    assert plan.bundles[0].gpus == 1.0


def test_each_learner_rank_has_its_own_bundle() -> None:
    agents = [{"name": "m", "resources": {"learner": {"ranks": 3, "cpus": 2}}}, "m"]
    plan = plan_of(with_resources(agents), cluster_has_gpus=True)
    ranks = [ActorId("learner", PolicyId((0,)), rank) for rank in range(3)]
    assert [str(rank) for rank in ranks] == ["agent 0 learner", "agent 0 learner rank 1", "agent 0 learner rank 2"]
    places = [plan.index(rank) for rank in ranks]
    assert len(set(places)) == 3
    assert all(plan.bundles[place].resources() == {"CPU": 2, "GPU": 1} for place in places)
    nodes = [{"CPU": 5, "GPU": 3}, {"CPU": 5, "GPU": 3}]
    assert pack(plan.bundles, nodes) is not None
    assert pack(plan.bundles, [{"CPU": 20, "GPU": 5}]) is None
    with pytest.raises(PlacementError, match=r"with resources.generator.replicas and resources.learner.ranks 1$"):
        plan_of(with_resources(generator={"gpus": 0.5}, learner={"ranks": 2}), cluster_has_gpus=True)


def test_agents_of_one_policy_have_one_learner_and_one_group_of_generators() -> None:
    plan = plan_of(with_resources([{}, {}, {"policy": 0}], generator={"replicas": 2}), cluster_has_gpus=False)
    both, own = PolicyId((0, 2)), PolicyId((1,))
    actors = [actor for bundle in plan.bundles for actor in bundle.actors if actor.kind != "sandbox"]
    assert actors == [
        *(ActorId("generator", both, replica) for replica in range(2)),
        ActorId("learner", both),
        *(ActorId("generator", own, replica) for replica in range(2)),
        ActorId("learner", own),
    ]
    assert list(map(str, actors[1:4])) == ["policy 0 generator 1", "policy 0 learner", "agent 1 generator 0"]
    assert len(plan.agents) == 3


def test_policies_that_share_a_base_model_share_a_learner() -> None:
    def sharing_config(**sections: Any) -> Config:
        return make_config(sections={"lora": {"rank": 4, "share_base": True}, "agents": ["m"] * 3} | sections)

    def learners(plan: PlacementPlan) -> list[tuple[str, float]]:
        actors = [(actor, bundle.gpus) for bundle in plan.bundles for actor in bundle.actors]
        return [(str(actor), gpus) for actor, gpus in actors if actor.kind == "learner"]

    config = sharing_config()
    assert config.learner_policies(PolicyId((1,))) == config.policies
    assert learners(plan_of(config, cluster_has_gpus=False)) == [("learner 0", 0)]
    two_share = plan_of(sharing_config(agents=["n", "m", "m"]), cluster_has_gpus=True)
    assert learners(two_share) == [("agent 0 learner", 1), ("learner 1", 1)]
    fractions = {"generator": {"gpus": 0.5}, "learner": {"gpus": 0.5}}
    with pytest.raises(PlacementError, match=r"a learner of several policies needs a GPU of its own"):
        plan_of(sharing_config(resources=fractions), cluster_has_gpus=True)


def test_agents_may_override_resources() -> None:
    shared = {"name": "m", "resources": {"generator": {"gpus": 0.5}, "learner": {"gpus": 0.5, "cpus": 2}}}
    plan = plan_of(with_resources(["m", shared], generator={"replicas": 1, "cpus": 3}), cluster_has_gpus=True)
    assert [agent.transport for agent in plan.agents] == ["nccl", "ipc"]
    assert [bundle.actors for bundle in plan.bundles[:3]] == [
        (ActorId("generator", PolicyId((0,)), 0),),
        (LEARNERS[0],),
        (ActorId("generator", PolicyId((1,)), 0), LEARNERS[1]),
    ]
    assert [(bundle.cpus, bundle.gpus) for bundle in plan.bundles[:3]] == [(3, 1), (0.25, 1), (5, 1)]
    wrong = {"name": "m", "resources": {"learner": {"gpus": 0}}}
    with pytest.raises(
        PlacementError, match=r"agents\.1\.resources\.generator\.gpus is 1 and agents\.1\.resources\.le"
    ):
        plan_of(with_resources(["m", wrong]), cluster_has_gpus=True)


@pytest.mark.parametrize(
    "resources",
    [
        {"generator": {"gpus": 1}, "learner": {"gpus": 0}},
        {"generator": {"gpus": 0.7}, "learner": {"gpus": 0.5}},
        {"generator": {"gpus": 0.5, "replicas": 2}, "learner": {"gpus": 0.5}},
    ],
)
def test_gpu_settings_without_a_weight_transport_are_rejected(resources: dict) -> None:
    with pytest.raises(PlacementError, match=r"resources\.(generator|learner)\.gpus"):
        plan_of(with_resources(**resources), cluster_has_gpus=True)


def test_colocated_generators_and_learners_share_a_device() -> None:
    plan = plan_of(with_resources(colocate=True), cluster_has_gpus=True)
    assert [(placement.transport, placement.device) for placement in plan.agents] == [("ipc", 0), ("ipc", 1)]
    assert [bundle.gpus for bundle in plan.bundles[:2]] == [1, 1]
    assert [actor.kind for actor in plan.bundles[1].actors] == ["generator", "learner"]

    thirds = {"gpus": 1 / 3, "gpu_memory_utilization": 0.3, "cpus": 2}
    plan = plan_of(with_resources([{}] * 4, colocate=True, generator=thirds), cluster_has_gpus=True)
    assert [placement.device for placement in plan.agents] == [0, 0, 0, 1]
    assert [(len(bundle.actors), bundle.cpus, bundle.gpus) for bundle in plan.bundles[:2]] == [
        (6, 6.75, 1),
        (2, 2.25, 1),
    ]
    assert plan.shared_gpus == dict.fromkeys((id for bundle in plan.bundles[:2] for id in bundle.actors), (0,))
    config = with_resources([{}] * 4, colocate=True, generator=thirds)
    alone = generator_plan(config.agents, config.resources, PolicyId((1,)), cluster_has_gpus=True)
    assert [(len(bundle.actors), bundle.gpus) for bundle in alone.bundles] == [(1, 1 / 3)]
    assert alone.agents[1].device is None


def test_colocation_without_gpus_places_all_policies_on_one_node() -> None:
    for has_gpus, generator in ((False, {}), (True, {"gpus": 0})):
        plan = plan_of(with_resources(colocate=True, generator=generator), has_gpus)
        assert [(placement.transport, placement.device, placement.generator_gpus) for placement in plan.agents] == [
            ("store", 0, 0)
        ] * 2
        assert [(len(bundle.actors), bundle.gpus) for bundle in plan.bundles] == [(4, 0), (1, 0), (1, 0)]


def test_policies_train_in_turns_on_all_gpus() -> None:
    engines = {"replicas": 2, "tensor_parallel": 2}
    plan = plan_of(with_resources(colocate=True, generator=engines, learner={"ranks": 8}), cluster_has_gpus=True)
    assert [(len(bundle.actors), bundle.gpus) for bundle in plan.bundles[:4]] == [(5, 2)] * 4
    assert [(placement.generator_gpus, placement.device) for placement in plan.agents] == [(2, 0)] * 2
    first, second = PolicyId((0,)), PolicyId((1,))
    assert [plan.index(ActorId("generator", second, replica)) for replica in range(2)] == [2, 3]
    assert plan.shared_gpus[ActorId("generator", first, 1)] == (0, 1)
    ranks = [ActorId("learner", second, rank) for rank in range(8)]
    assert [(plan.index(id), *plan.shared_gpus[id]) for id in ranks] == [(n // 2, n % 2) for n in range(8)]

    own = with_resources(colocate=True, generator=engines, learner={"ranks": 4})
    plan = plan_of(own, cluster_has_gpus=True)
    assert [placement.device for placement in plan.agents] == [0, 1], "the policies share no GPU"
    assert plan.index(ActorId("learner", second, 0)) == 2


def test_a_colocated_policy_has_a_rank_on_each_gpu_of_its_engines() -> None:
    config = with_resources(colocate=True, generator={"replicas": 2}, learner={"ranks": 3})
    with pytest.raises(
        PlacementError, match=r"on 2 GPUs of 4, and resources\.learner\.ranks is 3: set it to 2, or to 4"
    ):
        plan_of(config, cluster_has_gpus=True)
    with pytest.raises(PlacementError, match=r"tensor_parallel is 2, but there are no GPUs"):
        plan_of(with_resources(colocate=True, generator={"tensor_parallel": 2}), cluster_has_gpus=False)


def test_colocated_engines_may_not_request_more_than_the_gpu_memory() -> None:
    with pytest.raises(
        PlacementError, match=r"agent 0 and agent 1 share one GPU.* sum to 1\.7: lower it to 0\.47, or give"
    ):
        plan_of(with_resources(colocate=True, generator={"gpus": 0.5}), cluster_has_gpus=True)


def test_bundles_do_not_span_nodes() -> None:
    plan = plan_of(with_resources(generator={"cpus": 3}), cluster_has_gpus=False)
    assert pack(plan.bundles, [{"CPU": 2.0}] * 8) is None
    assert pack(plan.bundles, [{"CPU": 4.0}, {"CPU": 4.0}]) is not None


def test_a_shortage_names_requested_and_free_resources_and_settings() -> None:
    plan = plan_of(with_resources(generator={"cpus": 8}), cluster_has_gpus=False)
    line = describe_shortage(plan, [{"CPU": 2.0, "memory": 5.0}])
    assert "asked for CPU 17" in line
    assert "2 x generator with CPU 8" in line
    assert "free on 1 node: CPU 2." in line
    assert "resources.generator.cpus" in line
    assert "\n" not in line


def test_requested_resources_are_described_with_and_without_gpus() -> None:
    halves = with_resources(generator={"gpus": 0.5}, learner={"gpus": 0.5})
    line = describe_demands(halves.agents, halves.lora, halves.resources)
    assert "2 x generator + learner with CPU 0.75 GPU 1, 2 x sandbox with CPU 0.25)" in line
    parallel = with_resources(generator={"tensor_parallel": 2})
    assert "without GPUs impossible" in describe_demands(parallel.agents, parallel.lora, parallel.resources)


@pytest.mark.parametrize(
    ("has_gpus", "lora", "resources", "transport"),
    [
        (False, {}, {}, "store"),
        (False, {"in_engine": True}, {}, "adapter"),
        (True, {}, {}, "nccl"),
        (True, {"in_engine": True}, {}, "adapter"),
        (True, {"share_engine": True}, {}, "adapter"),
        (True, {}, {"colocate": True}, "ipc"),
        (True, {"in_engine": True}, {"colocate": True}, "adapter"),
        (True, {"in_engine": True}, {"generator": {"gpus": 0.5}, "learner": {"gpus": 0.5}}, "adapter"),
    ],
)
def test_engines_receive_adapters_only_if_the_config_says_so(
    has_gpus: bool, lora: dict, resources: dict, transport: str
) -> None:
    config = make_config(sections={"resources": resources, "lora": {"rank": 8} | lora})
    assert [agent.transport for agent in plan_of(config, has_gpus).agents] == [transport] * 2
    alone = generator_plan(config.agents, config.resources, PolicyId((0,)), has_gpus)
    assert "adapter" not in {agent.transport for agent in alone.agents}, "it is merged"


ONE_LEARNER = {"rank": 8, "share_base": True}


@pytest.mark.parametrize(
    ("lora", "agents", "resources", "message"),
    [
        (
            ONE_LEARNER,
            [{}, {}],
            {"generator": {"gpus": 1}},
            "is on one GPU, and their engines are not: set lora.in_engine",
        ),
        (ONE_LEARNER, [{"resources": {"generator": {"gpus": 0}}}, {}], {}, "have GPUs and none"),
        (
            {"rank": 8, "share_engine": True},
            [{}, {"resources": {"learner": {"ranks": 2}}}],
            {},
            "is 2, and agent 1 shares the engines of agent 0, whose learner has 1: set it to 1",
        ),
    ],
)
def test_processes_of_several_policies_are_on_the_gpu_of_all(
    lora: dict, agents: list, resources: dict, message: str
) -> None:
    sections = {"lora": lora, "resources": {"colocate": "resident", **resources}, "agents": agents}
    with pytest.raises(PlacementError, match=message):
        plan_of(make_config("magrpo", sections), cluster_has_gpus=True)


def test_an_evaluation_needs_no_gpus_for_learners() -> None:
    config = make_config("magrpo", {"resources": {"colocate": "turns", "learner": {"ranks": 2}}})
    for number in range(2):
        plan = generator_plan(config.agents, config.resources, PolicyId((number,)), cluster_has_gpus=True)
        assert plan.agents[number].generator_gpus == 1


def test_adapters_in_engines_on_gpus_need_16_bits() -> None:
    def config(**lora: Any) -> Config:
        model = {"model": {"name": "m", "model_kwargs": {"torch_dtype": "float32"}}}
        return make_config(sections={**model, "lora": {"rank": 8} | lora})

    assert [agent.transport for agent in plan_of(config(), cluster_has_gpus=True).agents] == ["nccl"] * 2
    with pytest.raises(
        PlacementError, match=r"^lora.in_engine: on GPUs vLLM computes adapters in 16 bits, and .*float"
    ):
        plan_of(config(in_engine=True), cluster_has_gpus=True)
    assert plan_of(config(in_engine=True), cluster_has_gpus=False).agents[0].transport == "adapter"


def test_policies_that_share_an_engine_have_the_generators_of_the_first_one() -> None:
    lora = {"rank": 8, "in_engine": True, "share_engine": True}
    agents = ["m", "m", "other"]
    plan = plan_of(make_config(sections={"lora": lora, "agents": agents}), cluster_has_gpus=True)
    generators = [id for bundle in plan.bundles for id in bundle.actors if id.kind == "generator"]
    assert generators == [ActorId("generator", PolicyId((agent,))) for agent in (0, 2)]
    halves = {"generator": {"gpus": 0.5}, "learner": {"gpus": 0.5}}
    with pytest.raises(PlacementError, match=r"^lora.share_engine: an engine of several policies needs a GPU"):
        plan_of(make_config(sections={"lora": lora, "agents": agents, "resources": halves}), cluster_has_gpus=True)
