"""Memory estimates, capacity plans, shortages, suggested settings and throughput estimates. Nothing is started."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
from transformers import Qwen2Config

from marl_ray.cluster.capacity_plan import (
    FRAGMENTED,
    ModelInfos,
    estimate_actor_memory,
    plan_capacity,
    reference_parameters,
)
from marl_ray.cluster.hardware import GIB, NodeSpec, parse_cluster
from marl_ray.cluster.memory_estimate import (
    CUDA_CONTEXT,
    CUDA_GRAPHS,
    LEARNER_PROCESS,
    LearnerSize,
    MemoryEstimate,
    ModelInfo,
    estimate_learner_memory,
)
from marl_ray.cluster.placement_plan import AgentPlacement, Transport
from marl_ray.config import AgentConfig, AlgorithmConfig, Config, LoraConfig
from marl_ray.config.agent_section import Dtype
from marl_ray.core.ids import ActorId, PolicyId
from marl_ray.plugins.planner.capacity_report import (
    BUS,
    DECODE_STEP,
    HOST_LAYER,
    estimate_throughputs,
    report_lines,
    shortage_message,
)
from marl_ray.plugins.planner.memory_savings import suggest_settings
from tests.factories import make_config


@dataclass(frozen=True, eq=False)
class FixedSize(ModelInfo):
    """A model whose learner has given sizes."""

    sizes: LearnerSize | None = None

    def learner(self, training: AlgorithmConfig, lora: LoraConfig, agent: AgentConfig, on_gpu: bool) -> LearnerSize:
        assert self.sizes is not None
        return self.sizes


SIZE = LearnerSize(parameters=1000, trained=1000, rows=70, shared=300, activations=5000, logits=700, largest=90)
NODE = parse_cluster("1x4xH100")
LAPTOP = NodeSpec("laptop", cpus=4, memory=16 * GIB)


def plan_config(resources: Any = None, lora: int = 0, **settings: Any) -> Config:
    sections = {"model": {"name": "m", "max_length": 1024}, "lora": {"rank": lora}, "resources": resources or {}}
    return make_config(sections=sections, **settings)


@pytest.fixture(scope="module")
def models() -> ModelInfos:
    """A model of six billion parameters with few layers, which take most of the profiling time."""
    settings = Qwen2Config(
        vocab_size=32_000,
        hidden_size=8192,
        intermediate_size=49_152,
        num_hidden_layers=4,
        num_attention_heads=64,
        num_key_value_heads=8,
        tie_word_embeddings=False,
    )
    return {"m": ModelInfo(settings, False)}


def learner_memory(config: Config, transport: Transport, size: LearnerSize = SIZE, **more: int) -> MemoryEstimate:
    gpus = 0.0 if transport == "store" else 1.0
    placement = AgentPlacement(gpus, gpus, transport)
    residency = config.resources.residency
    return estimate_learner_memory(size, config.agents[0], config.training, config.lora, placement, residency, **more)


def host_memory(config: Config, size: LearnerSize = SIZE, references: int = 0) -> dict[str, float]:
    return dict(learner_memory(config, "store", size, references=references).host)


def test_a_trained_parameter_takes_16_bytes_with_adamw_and_less_with_smaller_optimizers() -> None:
    parts = host_memory(plan_config())
    assert (parts["weights"], parts["gradients"], parts["optimizer"]) == (4000, 4000, 8000)
    assert (parts["activations"], parts["logits"], parts["object store"]) == (5000, 700, 4000)
    assert parts["allocator"] == 5700 / 2
    assert sum(parts.values()) == LEARNER_PROCESS + 16_000 + 1.5 * 5700 + 4000
    assert host_memory(plan_config(optimizer="adafactor"))["optimizer"] == 4 * 70
    assert host_memory(plan_config(optimizer="adamw_8bit"))["optimizer"] == 2 * (1000 + 4000 / 256)


def test_policies_on_a_shared_base_model_have_separate_adapters() -> None:
    adapted = LearnerSize(parameters=1000, trained=50, rows=10, shared=300, activations=7, logits=0)
    config = plan_config(lora=4)
    need = learner_memory(config, "store", adapted, policies=2).host
    assert (need["weights"], need["gradients"], need["optimizer"]) == (4 * 1100, 2 * 200, 2 * 400)
    assert need["activations"] == 7


def test_ranks_share_everything_but_activations() -> None:
    config = plan_config(resources={"learner": {"ranks": 4}})
    need = learner_memory(config, "store").host
    assert (need["weights"], need["gradients"], need["optimizer"]) == (1000, 1000, 2000)
    assert (need["gathered"], need["activations"], need["logits"]) == (2 * 4 * 300, 5000, 700)
    assert need["allocator"] == (5000 + 700) / 2 + 4000


def test_a_colocated_learner_is_offloaded_to_host_memory_during_rollouts() -> None:
    config = plan_config(resources={"colocate": True}, reference_kl_coef=0.1)
    need = learner_memory(config, "ipc", references=1000)
    assert need.host["offloaded"] == 4000 + 8000 + 4000  # weights, AdamW state, reference; no gradients
    assert (need.device["weights"], need.device["gradients"]) == (4000, 4000)
    separate = plan_config(reference_kl_coef=0.1)
    assert "offloaded" not in learner_memory(separate, "ipc").host


def test_on_a_gpu_a_checkpoint_takes_weights_and_optimizer_state_in_host_memory_once_more() -> None:
    def checkpoint(size: LearnerSize = SIZE, **settings: Any) -> float:
        config = plan_config(**settings)
        return learner_memory(config, "nccl", size).host["checkpoint"]

    assert checkpoint() == 4000 + 8000
    assert checkpoint(resources={"learner": {"ranks": 4, "cpu_offload": True}}) == 3000
    assert checkpoint(LearnerSize(1000, 50, 10, 300, 0, 0), lora=4) == 200 + 400
    assert "checkpoint" not in host_memory(plan_config()), "a learner on a CPU waits for the write"


def test_with_lora_only_adapters_have_gradients() -> None:
    adapted = LearnerSize(parameters=1000, trained=50, rows=10, shared=300, activations=0, logits=0)
    parts = host_memory(plan_config(lora=4, reference_kl_coef=0.1), adapted)
    assert (parts["weights"], parts["gradients"], parts["optimizer"]) == (4 * 1050, 200, 400)


@pytest.mark.parametrize(
    ("wire", "ranks", "lora", "expected"),
    [
        ("bfloat16", 1, {}, 4 * 1050 - 2 * 800),
        ("float32", 1, {}, 4 * 1050),
        ("bfloat16", 2, {}, 4 * 1050 / 2),
        ("bfloat16", 1, {"share_base": True}, 4 * 1050),
    ],
)
def test_matrices_that_lora_freezes_have_16_bits_on_one_gpu(
    wire: Dtype, ranks: int, lora: dict[str, Any], expected: float
) -> None:
    size = LearnerSize(1000, 50, 10, 300, 0, 0, frozen_matrices=800)
    config = plan_config({"learner": {"ranks": ranks}}, lora=4)
    agents = (replace(config.agents[0], dtype=wire),)
    need = learner_memory(replace(config, agents=agents, lora=replace(config.lora, **lora)), "nccl", size)
    assert need.device["weights"] == expected


def test_reference_policy_and_central_critic_count_as_models() -> None:
    assert host_memory(plan_config(reference_kl_coef=0.1), references=1000)["reference"] == 4000
    assert host_memory(plan_config(critic="maac", num_turns=2, handoff="all"))["critic"] == 16_000


def test_the_reference_policy_may_be_offloaded() -> None:
    settings = {"learner": {"gpus": 1, "offload_reference": True}, "generator": {"gpus": 1}}
    config = plan_config(resources=settings, reference_kl_coef=0.1)
    need = learner_memory(config, "nccl", references=1000)
    assert need.host["reference"] == 4000
    assert "reference" not in need.device, "it fits into the memory of the activations"
    assert {"CUDA", "weights", "buffers"} <= set(need.device)
    large = learner_memory(config, "nccl", references=10_000)
    assert (large.host["reference"], large.device["reference"]) == (40_000, 40_000 - 5700)


@pytest.mark.parametrize(
    ("settings", "lora", "initial", "large"),
    [
        ({}, 0, 0, 0),
        ({"reference_kl_coef": 0.1}, 0, 1, 0),
        ({"reference_kl_coef": 0.1}, 4, 0, 0),
        ({"reference_kl_coef": 0.1, "reference_model": "large"}, 0, 0, 1),
        ({"reference_kl_coef": 0.1, "reference_model": "large"}, 4, 0, 1),
        ({"reference_kl_coef": 0.1, "reference_model": "large", "policy": 0}, 0, 0, 1),
        ({"reference_kl_coef": 0.1, "policy": 0, "agents": [{}, {"reference_model": "large"}]}, 0, 1, 1),
    ],
)
def test_every_reference_model_of_a_policy_counts_once(
    settings: dict[str, Any], lora: int, initial: int, large: int, models: ModelInfos
) -> None:
    agents = {"agents": settings.pop("agents", None)}
    sections = {"model": {"name": "m", "max_length": 1024}, "lora": {"rank": lora}, **agents}
    config = make_config(sections=sections, **settings)
    of_policy = [config.agents[number] for number in config.policies[0].agents]
    found = reference_parameters(of_policy, {"large": models["m"]}, 7, config.lora)
    assert found == 7 * initial + large * models["m"].parameters


@pytest.mark.slow
def test_a_learner_too_large_for_a_gpu_gets_suggested_settings(models: ModelInfos) -> None:
    config = plan_config(max_new_tokens=256)
    plan = plan_capacity(config, models, parse_cluster("1x4xH100-80GB"))
    assert plan.placed is not None
    assert sorted(actor.gpus for actor in plan.placed if actor.gpus) == [(0,), (1,), (2,), (3,)]
    learner = estimate_actor_memory(config, models, plan.plan, ActorId("learner", PolicyId((0,))), plan.nodes[0])
    assert learner is not None
    assert learner.device["weights"] == pytest.approx(4 * 5.9602e9, rel=1e-4)
    assert sum(learner.device.values()) > 16 * 5.96e9
    generator = estimate_actor_memory(config, models, plan.plan, ActorId("generator", PolicyId((0,))), plan.nodes[0])
    assert generator is not None
    assert generator.device["weights"] == pytest.approx(2 * 5.9602e9, rel=1e-4)
    used = {part: size for part, size in generator.device.items() if part != "buffers"}
    assert sum(used.values()) == pytest.approx(0.85 * plan.nodes[0].device.memory)  # type: ignore[union-attr]
    line = shortage_message(config, models, plan)
    assert line.startswith("this run does not fit: node 0 GPU")
    assert "\n" not in line
    settings, enough = suggest_settings(config, models, plan.nodes)
    assert enough
    assert settings[-1] == "magrpo.optimizer: adamw_8bit"
    assert len({setting.partition(":")[0] for setting in settings}) == len(settings)
    adapted = plan_config(max_new_tokens=256, lora=16)
    assert shortage_message(adapted, models, plan_capacity(adapted, models, parse_cluster("1x4xH100-80GB"))) == ""


@pytest.mark.slow
def test_a_share_of_a_gpu_stays_free_for_a_learners_allocator(models: ModelInfos) -> None:
    node = parse_cluster("1x4xH100-80GB")[0]
    assert node.device is not None
    plan = plan_capacity(plan_config(max_new_tokens=256), models, [node])
    learners = [actor for actor in plan.placed or () if actor.id.kind == "learner"]
    need = plan.gpu_memory(0, learners[0].gpus[0])
    for share, fits in ((1 - FRAGMENTED - 0.01, True), (1 - FRAGMENTED + 0.01, False)):
        small = replace(plan, nodes=[replace(node, device=replace(node.device, memory=need / share))])
        lines = [line for line, _ in small.shortages if "(6% stay free for a learner)" in line]
        assert bool(lines) is not fits


def test_a_shortage_that_no_setting_removes_is_reported(models: ModelInfos) -> None:
    config = plan_config()
    line = shortage_message(config, models, plan_capacity(config, models, [LAPTOP]))
    assert "laptop has 16.0 GiB of memory" in line
    assert "No known setting is sufficient" in line


def test_missing_cores_are_reported_before_memory(models: ModelInfos) -> None:
    config = plan_config(resources={"learner": {"cpus": 3}})
    plan = plan_capacity(config, models, [LAPTOP])
    assert plan.placed is None
    assert report_lines(config, models, plan) == []
    assert shortage_message(config, models, plan).startswith("the cluster cannot place this run: asked for CPU")


def test_actors_of_an_unknown_model_are_placed_without_an_estimate() -> None:
    config = plan_config()
    plan = plan_capacity(config, {}, [LAPTOP])
    assert shortage_message(config, {}, plan) == ""
    text = "\n".join(report_lines(config, {}, plan))
    assert "not included, because model sizes are unknown: agent 0 generator 0, agent 0 learner" in text
    assert "laptop (4 CPUs, 16.0 GiB): 2 of 4 CPUs" in text


def test_decoding_is_bound_by_bandwidth_and_every_replica_reads_all_weights(models: ModelInfos) -> None:
    slow, parallel, replicated = (
        estimate_throughputs(variant, models, plan_capacity(variant, models, parse_cluster("2x8xH100")))[PolicyId((0,))]
        for variant in (
            plan_config(),
            plan_config(resources={"generator": {"tensor_parallel": 2}}),
            plan_config(resources={"generator": {"replicas": 4}}),
        )
    )
    steps_s = 256 * DECODE_STEP[True]
    assert parallel.rollout_s - steps_s == pytest.approx((slow.rollout_s - steps_s) / 2, rel=0.01)
    assert parallel.learn_s == slow.learn_s
    # 32 sequences read 11.9 GB of weights and their KV cache per token; 8 sequences read the same weights.
    least = 256 * 2 * 5.9602e9 / (0.6 * 3.35e12) + steps_s
    assert least < replicated.rollout_s < slow.rollout_s < 1.2 * least


def test_a_policy_that_does_not_learn_takes_no_time_for_training(models: ModelInfos) -> None:
    config = make_config(
        sections={
            "model": {"name": "m", "max_length": 1024},
            "agents": [{"name": "m"}, {"name": "m", "learning_rate": 0}],
        }
    )
    plan = plan_capacity(config, models, parse_cluster("2x8xH100"))
    learning, frozen = estimate_throughputs(config, models, plan).values()
    assert learning.learn_s > 0
    assert learning.sync_s > 0
    assert (frozen.learn_s, frozen.sync_s, frozen.rollout_s) == (0.0, 0.0, learning.rollout_s)
    lines = [line for line in report_lines(config, models, plan) if ": rollout" in line]
    assert [line.endswith("does not learn") for line in lines] == [False, True]


def test_a_step_includes_the_moves_of_actors_that_take_turns(models: ModelInfos) -> None:
    moves = []
    for colocate in ("resident", "kv", "stream", "turns"):
        config = plan_config(resources={"colocate": colocate})
        plan = plan_capacity(config, models, parse_cluster("1x4xH100"))
        [line] = [line for line in report_lines(config, models, plan) if " per step: " in line]
        assert line.endswith("without the sandbox")
        assert ("one after another" in line) == (colocate != "resident")
        moves.append(next(iter(estimate_throughputs(config, models, plan).values())).moves_s)
    assert moves == sorted(moves)
    assert moves[0] == 0
    parameters = models["m"].parameters
    assert moves[2] - moves[1] == pytest.approx(8 * parameters / BUS), "moments in and out at the same time"
    assert moves[3] - moves[1] == pytest.approx(24 * parameters / BUS, abs=0.3), "weights and moments in, then out"


def test_a_small_model_on_a_gpu_is_bound_by_the_launch_of_its_kernels() -> None:
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4}
    small = Qwen2Config(hidden_size=256, intermediate_size=512, num_hidden_layers=20, **heads)
    config = plan_config(rollout_buffer_size=1, num_generations=2, max_new_tokens=32)
    infos: ModelInfos = {agent.name: ModelInfo(small, False) for agent in config.agents}
    estimate = next(iter(estimate_throughputs(config, infos, plan_capacity(config, infos, NODE)).values()))
    assert estimate.learn_s == pytest.approx(20 * HOST_LAYER)
    assert estimate.compute_s < estimate.learn_s / 10


def test_sleeping_processes_keep_cuda_contexts_and_graphs(models: ModelInfos) -> None:
    config = plan_config(resources={"colocate": True}, lora=8)
    plan = plan_capacity(config, models, parse_cluster("1x2xH100"))
    engine, learner = (
        actor.memory.device for actor in plan.placed or () if actor.gpus == (0,) and actor.memory is not None
    )
    awake = max(sum(engine.values()) + CUDA_CONTEXT, sum(learner.values()) + CUDA_CONTEXT + CUDA_GRAPHS)
    assert plan.gpu_memory(0, 0) == pytest.approx(awake)


@pytest.mark.parametrize(("ranks", "values"), [(1, SIZE.largest), (2, SIZE.shared)])
def test_a_learner_loads_one_weight_or_layer_at_a_time(ranks: int, values: int) -> None:
    config = plan_config(resources={"learner": {"ranks": ranks}})
    for rank in range(ranks):
        size = replace(SIZE, trained=10)
        need = learner_memory(config, "nccl", size, rank=rank)
        # Before there is a checkpoint, whose memory is reserved.
        assert need.host["checkpoint"] == 12 * 10 / ranks
        assert need.host["checkpoint"] + need.host["loading"] == 4 * values


@pytest.mark.parametrize(("transport", "senders"), [("nccl", [0]), ("ipc", [0, 1])])
def test_ranks_that_send_have_a_message(transport: Transport, senders: list[int]) -> None:
    config = plan_config({"learner": {"ranks": 2}})
    found = [rank for rank in range(2) if "buffers" in learner_memory(config, transport, rank=rank).device]
    assert found == senders


def test_suggestions_include_more_than_8_ranks_and_offload(models: ModelInfos) -> None:
    sizes = LearnerSize(parameters=10**11, trained=10**11, rows=10**7, shared=10**9, activations=0, logits=0)
    infos: ModelInfos = {"m": FixedSize(models["m"].config, False, sizes=sizes)}
    resources = {"generator": {"gpus": 1}}
    config = plan_config(resources=resources, num_agents=1, gradient_checkpointing=True, microbatch_tokens=512)
    for cluster, expected in (
        ("5x8xH100", ["resources.learner.ranks: 32"]),
        ("1x8xH100", ["resources.learner.ranks: 4", "resources.learner.cpu_offload: true"]),
    ):
        assert suggest_settings(config, infos, parse_cluster(cluster)) == (expected, True)
