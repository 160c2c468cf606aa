"""Variable-length attention against the dense attention of the same packed groups. The kernel is replaced by its
definition, because FlashAttention runs on GPUs only."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.distributed.utils import _apply_to_tensors
from torch.nn.attention.bias import causal_lower_right
from transformers import Qwen2Config

from marl_ray.config import LoraConfig
from marl_ray.learning import attention
from marl_ray.learning.attention import PackedGroup, PackedGroups, packed_attention
from marl_ray.learning.memory_profile import MicroBatchShape, profile_memory
from tests.learning.builders import tiny_learner

HEADS, KEY_HEADS, WIDTH = 6, 2, 8


def varlen_by_definition(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    query_ends: torch.Tensor,
    key_ends: torch.Tensor,
    max_query: int,
    max_key: int,
    *,
    scale: float | None,
    window_size: tuple[int, int],
    enable_gqa: bool,
) -> torch.Tensor:
    """Return the result of `torch.nn.attention.varlen.varlen_attn`. Causal masks end at the lower right."""
    assert (window_size, enable_gqa) == ((-1, 0), True)
    assert query_ends.dtype == key_ends.dtype == torch.int32
    lengths, key_lengths = query_ends.diff().tolist(), key_ends.diff().tolist()
    assert (max(lengths), max(key_lengths)) == (max_query, max_key)
    assert (sum(lengths), sum(key_lengths)) == (len(query), len(key))
    outputs = []
    for q, k, v in zip(query.split(lengths), key.split(key_lengths), value.split(key_lengths), strict=True):
        mask = causal_lower_right(len(q), len(k))._materialize()
        states = (states.transpose(0, 1).unsqueeze(0) for states in (q, k, v))
        output = torch.nn.functional.scaled_dot_product_attention(
            *states, attn_mask=mask, scale=scale, enable_gqa=enable_gqa
        )
        outputs.append(output[0].transpose(0, 1))
    return torch.cat(outputs)


@pytest.mark.parametrize(
    "sizes",
    [
        [(3, (4, 2, 5))],
        [(5, (1, 14, 2)), (1, (1,)), (4, ())],
        [(2, ()), (3, (2, 2)), (7, (9,))],
        [(9, (4, 3, 5), (2, 6, 9))],
        [(9, (1, 14, 2), (6, 2, 9)), (4, (2, 2), (4, 4))],
    ],
)
def test_both_implementations_agree(monkeypatch: pytest.MonkeyPatch, sizes: list[Any]) -> None:
    monkeypatch.setattr(attention, "varlen_attn", varlen_by_definition)
    torch.manual_seed(0)
    tokens = sum(prompt + sum(lengths) for prompt, lengths, *_ in sizes)
    states = [torch.randn(1, heads, tokens, WIDTH, dtype=torch.float64) for heads in (HEADS, KEY_HEADS, KEY_HEADS)]
    goal = torch.randn(1, tokens, HEADS, WIDTH, dtype=torch.float64)
    results = []
    for is_varlen in (False, True):
        groups = PackedGroups((PackedGroup.of(*size) for size in sizes), is_varlen)
        inputs = [state.clone().requires_grad_() for state in states]
        output, _ = packed_attention(torch.nn.Identity(), *inputs, None, scaling=0.3, groups=groups)
        (output * goal).sum().backward()
        results.append([output.detach(), *(state.grad for state in inputs)])
    for dense, varlen in zip(*results, strict=True):
        torch.testing.assert_close(varlen, dense, rtol=1e-10, atol=1e-12)


def test_cpus_use_dense_attention() -> None:
    assert not attention.has_varlen_kernel(torch.zeros(1, 2, 3, 64, dtype=torch.bfloat16))


def test_completions_of_16k_tokens_need_no_quadratic_memory() -> None:
    settings = Qwen2Config(
        vocab_size=300,
        hidden_size=64,
        intermediate_size=80,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    shape = MicroBatchShape(groups=1, prompt=100, completions=2, completion=16_384, accumulated=True)
    profile = profile_memory(settings, shape, LoraConfig(), False, "bfloat16", on_gpu=True)
    assert profile.layout == "packed"
    assert profile.activations + profile.logits < 16_384 * 16_384, "less than one mask"


def test_fsdp_does_not_walk_the_groups() -> None:
    groups = PackedGroups([PackedGroup.of(3, (2, 2))])
    found: list[Any] = []
    moved = _apply_to_tensors(lambda tensor: found.append(tensor), {"groups": groups})
    assert moved["groups"] is groups
    assert found == []
    walked = _apply_to_tensors(lambda tensor: found.append(tensor) or tensor, {"groups": groups.groups})
    assert len(found) == 3
    assert walked["groups"][0] is not groups.groups[0], "a dataclass is copied"


def test_learners_disable_the_attention_of_cudnn(tiny_policy: Any) -> None:
    torch.backends.cuda.enable_cudnn_sdp(True)
    tiny_learner(tiny_policy)
    assert not torch.backends.cuda.cudnn_sdp_enabled()
