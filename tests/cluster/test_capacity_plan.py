"""The plan's arithmetic: what actors need, where they go, what does not fit and what helps. Nothing is started."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import Qwen2Config

from marl_ray.cluster.capacity_plan import (
    ModelInfos,
    estimate_actor_memory,
    estimate_throughputs,
    plan_capacity,
    suggest_settings,
)
from marl_ray.cluster.capacity_report import report_lines, shortage_message
from marl_ray.cluster.hardware import GIB, NodeSpec, parse_cluster
from marl_ray.cluster.memory_estimate import LEARNER_PROCESS, LearnerSize, estimate_learner_memory
from marl_ray.cluster.model_info import ModelInfo
from marl_ray.config import Config, from_tree
from marl_ray.core.ids import ActorId, PolicyId

SIZE = LearnerSize(parameters=1000, trained=1000, rows=70, largest=100, shared=300, activations=5000, logits=700)
LAPTOP = NodeSpec("laptop", cpus=4, memory=16 * GIB)


def config(algorithm: str = "magrpo", resources: Any = None, lora: int = 0, **settings: Any) -> Config:
    tree = {
        "model": {"name": "m", "max_length": 1024},
        "dataset": {"name": "bundled:toy"},
        "lora": {"rank": lora},
        "resources": resources or {},
        algorithm: settings,
    }
    return from_tree(tree, algorithm)


@pytest.fixture(scope="module")
def models() -> ModelInfos:
    """One of six billion weights in few layers, which are what takes time."""
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


def host(of: Config, size: LearnerSize = SIZE) -> dict[str, float]:
    return dict(estimate_learner_memory(size, of, of.agents[0], False, "float32", False).host)


def test_a_weight_that_learns_costs_sixteen_bytes_and_less_with_less_state() -> None:
    parts = host(config())
    assert (parts["weights"], parts["gradients"], parts["optimizer"]) == (4000, 4000, 8000)
    assert (parts["activations"], parts["logits"], parts["published"]) == (5000, 700, 4000)
    assert parts["allocator"] == 5700 / 2
    assert sum(parts.values()) == LEARNER_PROCESS + 16_000 + 1.5 * 5700 + 4000
    assert host(config(optimizer="adafactor"))["optimizer"] == 4 * 70
    assert host(config(optimizer="adamw_8bit"))["optimizer"] == 2 * (1000 + 4000 / 256)


def test_policies_on_one_model_have_adapters_of_their_own() -> None:
    adapted = LearnerSize(parameters=1000, trained=50, rows=10, largest=5, shared=300, activations=7, logits=0)
    of = config(lora=4)
    need = estimate_learner_memory(adapted, of, of.agents[0], False, "float32", False, policies=2).host
    assert (need["weights"], need["gradients"], need["optimizer"]) == (4 * 1100, 2 * 200, 2 * 400)
    assert need["activations"] == 7


def test_ranks_share_out_all_but_what_they_compute() -> None:
    of = config(resources={"learner": {"ranks": 4}})
    need = estimate_learner_memory(SIZE, of, of.agents[0], False, "float32", False).host
    assert (need["weights"], need["gradients"], need["optimizer"]) == (1000, 1000, 2000)
    assert (need["gathered"], need["activations"], need["logits"]) == (2 * 4 * 300, 5000, 700)
    assert need["allocator"] == (5000 + 700) / 2 + 4000


def test_a_colocated_learner_is_in_the_hosts_memory_while_its_engine_plays() -> None:
    of = config(resources={"colocate": True}, reference_kl_coef=0.1)
    need = estimate_learner_memory(SIZE, of, of.agents[0], True, "bfloat16", False)
    assert need.host["parked"] == 4000 + 8000 + 4000  # weights, AdamW's numbers, the reference; no gradients
    assert (need.device["weights"], need.device["gradients"]) == (4000, 4000)
    apart = config(reference_kl_coef=0.1)
    assert "parked" not in estimate_learner_memory(SIZE, apart, apart.agents[0], True, "bfloat16", False).host


def test_only_adapters_have_gradients() -> None:
    adapted = LearnerSize(parameters=1000, trained=50, rows=10, largest=5, shared=300, activations=0, logits=0)
    parts = host(config(lora=4, reference_kl_coef=0.1), adapted)
    assert (parts["weights"], parts["gradients"], parts["optimizer"]) == (4 * 1050, 200, 400)
    assert "reference" not in parts


def test_reference_and_central_critic_are_models_too() -> None:
    assert host(config(reference_kl_coef=0.1))["reference"] == 4000
    assert host(config(critic="maac", num_turns=2, handoff="all"))["critic"] == 16_000


def test_a_reference_may_be_in_the_hosts_memory() -> None:
    settings = {"learner": {"gpus": 1, "offload_reference": True}, "generator": {"gpus": 1}}
    of = config(resources=settings, reference_kl_coef=0.1)
    need = estimate_learner_memory(SIZE, of, of.agents[0], True, "bfloat16", True)
    assert need.host["reference"] == 4000
    assert "reference" not in need.device
    assert {"CUDA", "weights", "buffers"} <= set(need.device)


def test_six_billion_weights_fit_no_learner_of_one_gpu_and_what_helps_is_said(models: ModelInfos) -> None:
    of = config(max_new_tokens=256)
    found = plan_capacity(of, models, parse_cluster("1x4xH100-80GB"))
    assert found.placed is not None
    assert sorted(one.gpus for one in found.placed if one.gpus) == [(0,), (1,), (2,), (3,)]
    learner = estimate_actor_memory(of, models, found.plan, ActorId("learner", PolicyId((0,))), found.machines[0])
    assert learner is not None
    assert learner.device["weights"] == pytest.approx(4 * 5.9602e9, rel=1e-4)
    assert learner.device_total > 16 * 5.96e9
    generator = estimate_actor_memory(of, models, found.plan, ActorId("generator", PolicyId((0,))), found.machines[0])
    assert generator is not None
    assert generator.device["weights"] == pytest.approx(2 * 5.9602e9, rel=1e-4)
    taken = {part: size for part, size in generator.device.items() if part != "buffers"}
    assert sum(taken.values()) == pytest.approx(0.85 * found.machines[0].device.memory)  # type: ignore[union-attr]
    line = shortage_message(of, models, found)
    assert line.startswith("this run does not fit: node 0 GPU")
    assert "\n" not in line
    settings, enough = suggest_settings(of, models, found.machines)
    assert enough
    assert settings[-1] == "magrpo.optimizer: adamw_8bit"
    assert len({setting.partition(":")[0] for setting in settings}) == len(settings)
    adapted = config(max_new_tokens=256, lora=16)
    assert shortage_message(adapted, models, plan_capacity(adapted, models, parse_cluster("1x4xH100-80GB"))) == ""


def test_what_no_setting_mends_is_said_too(models: ModelInfos) -> None:
    of = config()
    line = shortage_message(of, models, plan_capacity(of, models, [LAPTOP]))
    assert "laptop has 16.0 GiB of memory" in line
    assert "No setting known here is enough" in line


def test_cores_that_are_not_there_are_said_before_memory(models: ModelInfos) -> None:
    of = config(resources={"learner": {"cpus": 3}})
    found = plan_capacity(of, models, [LAPTOP])
    assert found.placed is None
    assert report_lines(of, models, found) == []
    assert shortage_message(of, models, found).startswith("the cluster cannot place this run: asked for CPU")


def test_a_model_that_is_not_known_is_placed_all_the_same() -> None:
    of = config()
    found = plan_capacity(of, {}, [LAPTOP])
    assert shortage_message(of, {}, found) == ""
    text = "\n".join(report_lines(of, {}, found))
    assert "not counted, for want of sizes: agent 0 generator 0, agent 0 learner" in text
    assert "laptop (4 CPUs, 16.0 GiB): 2 of 4 CPUs" in text


def test_more_devices_are_faster_and_decoding_is_bound_by_bandwidth(models: ModelInfos) -> None:
    of, twice = config(), config(resources={"generator": {"tensor_parallel": 2}})
    policy = PolicyId((0,))
    slow, fast = (
        estimate_throughputs(each, models, plan_capacity(each, models, parse_cluster("2x8xH100")))[policy]
        for each in (of, twice)
    )
    assert fast.rollout_s == pytest.approx(slow.rollout_s / 2, rel=0.01)
    assert fast.learn_s == slow.learn_s
    # 32 sequences read 11.9 GB of weights for each token, and their keys and values.
    least = 256 * 2 * 5.9602e9 / (0.6 * 3.35e12)
    assert least < slow.rollout_s < 1.2 * least
