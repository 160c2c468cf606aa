"""Defaults of an engine's batch: vLLM's for offline inference on GPUs, unchanged on CPUs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from vllm import EngineArgs
from vllm.usage.usage_lib import UsageContext

from marl_ray.actors.engine_arguments import EngineSpec, engine_arguments
from marl_ray.actors.engine_environment import engine_environment
from marl_ray.actors.engine_sleep import EngineSleep
from marl_ray.cluster.hardware import GIB
from marl_ray.cluster.memory_estimate import engine_batch
from marl_ray.config import LoraConfig
from marl_ray.config.resource_sections import GeneratorResources
from marl_ray.learning.arguments import learner_arguments, microbatch_tokens
from marl_ray.toy import BASE_PATH
from tests.factories import make_config


def spec(on_gpu: bool, max_num_seqs: int | None) -> EngineSpec:
    return EngineSpec(str(BASE_PATH), "float32", 512, False, on_gpu, 1, 0.85, 64, max_num_seqs, "store")


def test_gpus_use_the_defaults_of_vllm_for_offline_inference(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = engine_arguments(spec(True, None))
    assert arguments["max_num_seqs"] is None
    assert "max_num_batched_tokens" not in arguments
    assert engine_arguments(spec(True, 32))["max_num_seqs"] == 32
    from vllm.engine import arg_utils

    for gib in (24, 80):
        platform = type(
            "Platform",
            (),
            {
                "get_device_total_memory": lambda gib=gib: gib * GIB,
                "get_device_name": lambda: "h100",
                "is_tpu": lambda: False,
                "is_cpu": lambda: False,
                "is_rocm": lambda: False,
                "is_xpu": lambda: False,
            },
        )
        with monkeypatch.context() as patch:
            patch.setattr("vllm.platforms.current_platform", platform, raising=False)
            patch.setattr(arg_utils, "current_platform", platform, raising=False)
            tokens, sequences = EngineArgs.get_batch_defaults(1)
        assert UsageContext.ENGINE_CONTEXT not in tokens, "vLLM's engine would take 2048 tokens and 128 sequences"
        expected = (sequences[UsageContext.LLM_CLASS], tokens[UsageContext.LLM_CLASS])
        assert engine_batch(GeneratorResources(), gib * GIB) == expected


def test_engines_on_gpus_start_without_kernels_of_flashinfer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VLLM_USE_FLASHINFER_SAMPLER", raising=False)
    assert engine_arguments(spec(True, None))["enable_flashinfer_autotune"] is False
    assert "enable_flashinfer_autotune" not in engine_arguments(spec(False, None))
    assert engine_environment(1, True, True, False)["VLLM_USE_FLASHINFER_SAMPLER"] == "0"
    monkeypatch.setenv("VLLM_USE_FLASHINFER_SAMPLER", "1")
    assert engine_environment(1, True, True, False)["VLLM_USE_FLASHINFER_SAMPLER"] == "1", "the user's choice"


def test_cpus_keep_their_defaults() -> None:
    arguments = engine_arguments(spec(False, None))
    assert (arguments["max_num_seqs"], arguments["max_num_batched_tokens"]) == (256, 8192)
    config = make_config()
    assert microbatch_tokens(config.training, on_gpu=False) == config.training.tokens_per_microbatch == 2048
    assert microbatch_tokens(config.training, on_gpu=True) == 8192
    assert microbatch_tokens(make_config(microbatch_tokens=100).training, on_gpu=True) == 100
    assert learner_arguments(config, config.policies[0], 1).optimizer.microbatch_tokens == 2048


@pytest.mark.parametrize(("rank", "served"), [(1, 1), (4, 8), (64, 64), (200, 256)])
def test_an_engine_with_adapters_has_the_next_rank_and_only_the_adapted_layers(rank: int, served: int) -> None:
    pytest.importorskip("peft")
    lora = LoraConfig(rank=rank, targets=("q_proj", "mlp.down_proj"))
    arguments = engine_arguments(replace(spec(False, None), transport="adapter", lora=lora))
    assert (arguments["max_lora_rank"], arguments["max_loras"]) == (served, 1)
    assert arguments["lora_target_modules"] == ["down_proj", "q_proj"]
    everywhere = engine_arguments(replace(spec(False, None), transport="adapter", lora=LoraConfig(rank=rank)))
    assert "lm_head" not in everywhere["lora_target_modules"]
    assert "enable_lora" not in engine_arguments(spec(False, None))


@pytest.mark.parametrize(("offloads_weights", "level"), [(False, 2), (True, 1)])
def test_an_engine_that_receives_adapters_keeps_its_weights_while_it_sleeps(offloads_weights: bool, level: int) -> None:
    levels: list[int] = []

    class Engine:
        def collective_rpc(self, method: str) -> None:
            pass

        def sleep(self, level: int, mode: str) -> None:
            levels.append(level)

    EngineSleep(Engine(), on_gpu=True, offloads_weights=offloads_weights).begin()
    assert levels == [level]
