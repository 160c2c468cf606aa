"""Weight transfers of large models: memory beside the weights, and tensors above the default buffer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, core_model_loading

from marl_ray.weights import sender
from marl_ray.weights.sender import MESSAGE_BYTES, CastSource

LAYERS = 4


@pytest.fixture(scope="module")
def experts() -> Any:
    """A mixture of experts, whose files have one tensor per expert and other names than the model."""
    sizes = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "num_key_value_heads": 1}
    shape = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 2, "head_dim": 32, "vocab_size": 64}
    config = AutoConfig.for_model("qwen3_moe", num_hidden_layers=LAYERS, **sizes, **shape)
    return AutoModelForCausalLM.from_config(config)


def test_renamed_weights_are_converted_layer_by_layer(experts: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    at_once = core_model_loading.revert_weight_conversion(
        experts, {name: p.detach().to(torch.bfloat16) for name, p in experts.named_parameters()}
    )
    source = CastSource(experts, torch.bfloat16)
    sizes: list[int] = []

    def convert(model: Any, weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        sizes.append(sum(tensor.nbytes for tensor in weights.values()))
        return core_model_loading.revert_weight_conversion(model, weights)

    monkeypatch.setattr(sender, "revert_weight_conversion", convert)
    sent = dict(source)
    assert sent.keys() == at_once.keys() != dict(experts.named_parameters()).keys()
    assert all(torch.equal(tensor, at_once[name]) for name, tensor in sent.items())
    assert [(meta.name, meta.shape) for meta in source.metadata()] == [(n, tuple(t.shape)) for n, t in sent.items()]
    whole = sum(p.numel() * 2 for p in experts.parameters())
    assert max(sizes) <= whole / LAYERS


@pytest.mark.parametrize(("elements", "expected"), [(1, 2), (2**29, MESSAGE_BYTES), (2**30, 2 * 2**30)])
def test_buffers_hold_the_largest_tensor_and_not_more_than_all(
    elements: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with torch.device("meta"):
        model = torch.nn.Embedding(1, elements)
    monkeypatch.setattr(sender, "revert_weight_conversion", lambda model, weights: weights)
    assert CastSource(model, torch.bfloat16).buffer_bytes == expected
