"""Memory and FLOPs measured on fake tensors and with a real model are equal."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from marl_ray.config import LoraConfig
from marl_ray.learning import memory_profile as rehearsal
from marl_ray.learning.attention import PACKED
from marl_ray.learning.memory_profile import (
    MemoryProfile,
    MemoryTracker,
    MicroBatchShape,
    _batches,
    _measured,
    profile_memory,
)

SHAPE = MicroBatchShape(groups=2, prompt=12, completions=3, completion=8, accumulated=True)


def settings_of(layers: int) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=300,
        hidden_size=32,
        intermediate_size=80,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
    )


def profile(layers: int, lora: int = 0, checkpointing: bool = False, **where: Any) -> MemoryProfile:
    return profile_memory(settings_of(layers), SHAPE, LoraConfig(rank=lora), checkpointing, **where)


def test_the_profile_equals_a_real_models() -> None:
    model = LlamaForCausalLM(settings_of(2)).train()
    model.set_attn_implementation(PACKED)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    packed, _ = _batches(SHAPE)
    real = _measured(model, packed, "packed", torch.float32)
    found = profile(2)
    assert found.parameters == found.trained == model.num_parameters()
    assert (found.layout, found.tokens) == ("packed", 2 * (12 + 3 * 8))
    assert found.flops == real.flops
    assert found.activations + found.logits == pytest.approx(real.activations + real.logits, rel=1e-3)


def test_the_extrapolation_over_layers_is_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    few = profile(7)
    monkeypatch.setattr(rehearsal, "SHALLOW", (7, 8))
    whole = profile(7)
    assert few == whole
    assert whole.embeddings == 2 * 300 * 32


def test_checkpointing_bfloat16_and_adapters_reduce_memory() -> None:
    whole = profile(3)
    checkpointed, narrow = profile(3, checkpointing=True), profile(3, on_gpu=True, dtype="bfloat16")
    assert checkpointed.activations + checkpointed.logits < 0.8 * (whole.activations + whole.logits)
    assert checkpointed.flops > 1.2 * whole.flops
    assert narrow.activations < whole.activations
    pytest.importorskip("peft")
    adapted = profile(3, lora=2)
    assert adapted.trained == adapted.parameters - whole.parameters < whole.trained / 5
    assert adapted.flops < whole.flops


@pytest.mark.parametrize(("dtype", "item"), [("float32", 4), ("bfloat16", 2)])
def test_with_checkpointing_a_layer_adds_one_residual_stream(dtype: str, item: int) -> None:
    shallow, deep = (profile(layers, checkpointing=True, on_gpu=True, dtype=dtype) for layers in (5, 9))
    growth = deep.activations + deep.logits - shallow.activations - shallow.logits
    assert growth == 4 * shallow.tokens * 32 * item


def test_storages_are_counted_once_until_they_are_freed() -> None:
    model = torch.nn.Linear(4, 4)
    with MemoryTracker(model, logits_numel=1000) as memory:
        first = torch.zeros(100)
        view = first[:50]
        del first
        second = torch.zeros(1000)
        assert memory.peak == (400, 4000)
        del second, view
        torch.zeros(500)
    assert memory.peak == (400, 4000)
