"""The decision whether actors share GPUs, and what stays on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from transformers import Qwen2Config

from marl_ray.cluster.capacity_plan import ModelInfos, engine_cache_bytes, plan_capacity
from marl_ray.cluster.hardware import GIB, NodeSpec, parse_cluster
from marl_ray.cluster.memory_estimate import ModelInfo
from marl_ray.cluster.residency import RESIDENCIES, decide_residency, share_gpus, share_gpus_of_evaluation
from marl_ray.config import Config
from marl_ray.core.ids import ActorId, PolicyId
from tests.factories import make_config

H100 = parse_cluster("1x1xH100")
CPUS = [NodeSpec("laptop", cpus=4, memory=16 * GIB)]


def qwen(
    hidden: int,
    intermediate: int,
    layers: int,
    heads: int,
    key_value_heads: int = 2,
    vocabulary: int = 151_936,
    tied: bool = True,
) -> ModelInfo:
    """Return a model of Qwen2.5's geometry, whose size is computed without weights."""
    settings = Qwen2Config(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=key_value_heads,
        tie_word_embeddings=tied,
    )
    return ModelInfo(settings, False, prompt=200)


MODELS: ModelInfos = {
    "0.5B": qwen(896, 4864, 24, 14),
    "1.5B": qwen(1536, 8960, 28, 12),
    "3B": qwen(2048, 11008, 36, 16),
    "7B": qwen(3584, 18_944, 28, 28, key_value_heads=4, vocabulary=152_064, tied=False),
}


def pair(model: str, resources: Any = None, **settings: Any) -> Config:
    defaults: dict[str, Any] = {"num_generations": 8, "max_new_tokens": 256, "rollout_buffer_size": 4, "num_turns": 1}
    defaults |= {"gradient_checkpointing": True}
    sections = {"model": {"name": model, "max_length": 1024}, "resources": resources or {}}
    return make_config(sections=sections, **(defaults | settings))


def sharing(config: Config, nodes: Sequence[NodeSpec] = H100) -> Config:
    return replace(config, agents=share_gpus(config.agents, config.lora, config.resources, nodes))


@pytest.mark.parametrize(
    ("model", "settings", "expected"),
    [
        ("0.5B", {}, "resident"),
        ("1.5B", {}, "kv"),
        ("1.5B", {"optimizer": "adamw_8bit"}, "resident"),
        ("1.5B", {"gradient_checkpointing": False}, "stream"),
        ("3B", {}, "stream"),
        ("3B", {"optimizer": "adamw_8bit"}, "kv"),
    ],
)
def test_a_pair_on_one_gpu_keeps_there_what_fits(model: str, settings: dict[str, Any], expected: str) -> None:
    config, reason = decide_residency(pair(model, **settings), MODELS, H100)
    assert config.resources.colocate == expected
    assert reason.startswith(f"resources.colocate: {expected}, because it needs ")
    assert "of 74.9 GiB per GPU" in reason
    for other in RESIDENCIES[: RESIDENCIES.index(expected)]:  # type: ignore[arg-type]
        assert f"{other} " in reason, "why not the faster ones"
    assert config.agents == pair(model, **settings).agents, "the same config runs on other machines"
    on_node = sharing(config)
    assert [agent.generator.gpus for agent in on_node.agents] == [0.5, 0.5]
    assert plan_capacity(on_node, MODELS, H100).shortages == []
    again, no_reason = decide_residency(config, MODELS, H100)
    assert (again, no_reason) == (config, ""), "a resumed run keeps the decision"


def test_memory_on_the_gpu_decreases_from_resident_to_turns() -> None:
    used = []
    for residency in RESIDENCIES:
        shared = {"colocate": residency, "generator": {"gpus": 0.5, "gpu_memory_utilization": 0.45}}
        used.append(plan_capacity(pair("1.5B", shared), MODELS, H100).gpu_memory(0, 0))
    assert used == sorted(used, reverse=True)
    assert len(set(used)) == 4


def test_nothing_is_shared_without_gpus_or_with_enough_of_them() -> None:
    for nodes in (CPUS, parse_cluster("1x4xH100")):
        config, reason = decide_residency(pair("0.5B"), MODELS, nodes)
        assert (config, reason) == (pair("0.5B"), "")
        assert sharing(config, nodes) == config


def test_gpus_that_the_config_assigns_are_not_shared_otherwise() -> None:
    parts = {"generator": {"gpus": 0.25}, "learner": {"gpus": 0.25}}
    config, _ = decide_residency(pair("0.5B", parts), MODELS, H100)
    assert config == pair("0.5B", parts)


def test_a_share_for_the_engine_alone_means_that_the_gpu_is_shared() -> None:
    halves = {"generator": {"gpus": 0.5, "gpu_memory_utilization": 0.3}}
    config, reason = decide_residency(pair("0.5B", halves), MODELS, H100)
    assert config.resources.residency == "resident"
    assert reason
    assert sharing(config) == config


def test_rollouts_that_run_ahead_need_everything_on_the_gpu() -> None:
    config, _ = decide_residency(pair("0.5B", max_staleness=1), MODELS, H100)
    assert config.resources.colocate == "resident"
    config, reason = decide_residency(pair("3B", max_staleness=1), MODELS, H100)
    assert config.resources.colocate == "resident"
    assert "although no way to share fits by the plan (resident " in reason


def test_engines_without_gpus_are_left_to_the_checks_of_the_placement() -> None:
    config, reason = decide_residency(pair("0.5B", {"generator": {"gpus": 0}}), MODELS, H100)
    assert (config.resources.colocate, reason) == ("auto", "")


def test_true_shares_the_memory_of_a_node_without_gpus() -> None:
    config, reason = decide_residency(pair("0.5B", {"colocate": True}), MODELS, [NodeSpec("big", 64, 512 * GIB)])
    assert config.resources.colocate == "resident"
    assert "of 512.0 GiB per node" in reason


def test_an_unknown_model_or_gpu_is_used_in_turns() -> None:
    unknown = NodeSpec("other", 16, 128 * GIB, gpus=1)
    for models, nodes in (({}, H100), (MODELS, [unknown])):
        config, reason = decide_residency(pair("0.5B"), models, nodes)
        assert config.resources.colocate == "turns"
        assert reason.endswith("because the memory of a model or of a GPU is not known")


def test_engines_that_share_a_gpu_have_a_cache_for_the_sequences_of_a_step() -> None:
    config, _ = decide_residency(pair("0.5B"), MODELS, H100)
    sizes = engine_cache_bytes(sharing(config), MODELS, H100)
    per_token = 2 * 24 * 2 * 64 * 2  # keys and values, layers, heads, width, bytes
    assert sizes == dict.fromkeys([PolicyId((0,)), PolicyId((1,))], (64 * 1024 + 16) * per_token)
    apart, _ = decide_residency(pair("0.5B"), MODELS, parse_cluster("1x4xH100"))
    assert engine_cache_bytes(apart, MODELS, parse_cluster("1x4xH100")) == {}, "vLLM takes the rest"


def test_engines_of_an_evaluation_share_gpus_if_there_are_too_few() -> None:
    shared = share_gpus_of_evaluation(pair("0.5B"), H100)
    assert [agent.generator.gpus for agent in shared.agents] == [0.5, 0.5]
    assert [agent.generator.gpu_memory_utilization for agent in shared.agents] == [0.45, 0.45]
    for nodes in (CPUS, parse_cluster("1x2xH100")):
        assert share_gpus_of_evaluation(pair("0.5B"), nodes) == pair("0.5B")


ONE_BASE = {"share_engine": True, "share_base": True}


def with_lora(config: Config, **settings: Any) -> Config:
    return replace(config, lora=replace(config.lora, rank=16, **settings))


@pytest.mark.parametrize("agents", [2, 4, 8])
def test_agents_on_one_base_model_of_7b_stay_on_one_gpu(agents: int) -> None:
    config = with_lora(pair("7B", num_agents=agents), **ONE_BASE)
    decided, reason = decide_residency(config, MODELS, H100)
    assert decided.resources.colocate == "resident"
    assert "too large" not in reason
    assert "although" not in reason
    plan = plan_capacity(sharing(decided), MODELS, H100)
    actors = [actor.id for actor in plan.placed or () if actor.id.kind != "sandbox"]
    assert actors == [ActorId("generator", PolicyId((0,)), 0), ActorId("learner", None, 0)]
    assert {placement.transport for placement in plan.plan.agents} == {"adapter"}


def test_a_pair_with_adapters_is_told_how_to_stay_on_the_gpu() -> None:
    hint = "With lora.share_engine and share_base true, everything would stay on the GPU"
    decided, reason = decide_residency(with_lora(pair("7B")), MODELS, H100)
    assert decided.resources.colocate == "turns"
    assert reason.endswith(hint)
    assert hint not in decide_residency(pair("3B"), MODELS, H100)[1]
