"""Log-probabilities and entropies of tokens against their definitions, in chunks of any size."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_ray.learning import logprobs as logprobs_module
from marl_ray.learning.logprobs import NO_TOKEN, token_logprobs_and_entropies

LOGITS = st.lists(st.lists(st.floats(-20, 20), min_size=3, max_size=3), min_size=1, max_size=6)


@pytest.fixture(params=[1, 2, 100])
def rows(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Set the number of rows per chunk for logits over three tokens."""
    monkeypatch.setattr(logprobs_module, "CPU_CHUNK_NUMBERS", 3 * request.param)
    monkeypatch.setattr(logprobs_module, "MIN_CHUNK_ROWS", 1)
    return int(request.param)


@settings(max_examples=50, deadline=None)
@given(LOGITS, st.sampled_from([0.3, 1.0, 1.7]))
def test_logprobs_and_entropies_follow_the_definitions(logits: list[list[float]], temperature: float) -> None:
    scaled = np.array(logits) / temperature
    chances = np.exp(scaled - scaled.max(1, keepdims=True))
    chances /= chances.sum(1, keepdims=True)
    tokens = torch.arange(len(logits)) % 3
    found, entropies = token_logprobs_and_entropies(torch.tensor(logits, dtype=torch.float64), tokens, temperature)
    logs = np.log(np.maximum(chances, 1e-300))
    np.testing.assert_allclose(found.numpy(), logs[np.arange(len(logits)), tokens], atol=1e-9)
    np.testing.assert_allclose(entropies.numpy(), -(chances * logs).sum(1), atol=1e-9)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_the_gradient_equals_finite_differences(rows: int, temperature: float) -> None:
    logits = torch.randn(5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    tokens = torch.tensor([0, 2, NO_TOKEN, 1, 2])
    torch.autograd.gradcheck(lambda x: token_logprobs_and_entropies(x, tokens, temperature)[0], (logits,))
    logprobs, entropies = token_logprobs_and_entropies(logits, tokens, temperature)
    logprobs.sum().backward()
    assert logprobs[2] == 0
    assert logits.grad is not None
    assert not logits.grad[2].any()
    assert not entropies.requires_grad


def test_impossible_tokens_do_not_contribute(rows: int) -> None:
    logits = torch.tensor([[0.0, 0.0, -torch.inf]], requires_grad=True)
    logprobs, entropies = token_logprobs_and_entropies(logits, torch.tensor([0]), 1.0)
    logprobs.sum().backward()
    assert float(entropies) == pytest.approx(np.log(2))
    assert logits.grad is not None
    assert logits.grad.tolist() == [[0.5, -0.5, 0.0]]


def test_16_bit_logits_are_computed_in_float32(rows: int) -> None:
    logits = torch.randn(4, 3, generator=torch.Generator().manual_seed(1)).bfloat16().requires_grad_()
    logprobs, entropies = token_logprobs_and_entropies(logits, torch.tensor([0, 1, 2, 0]), 0.9)
    exact, _ = token_logprobs_and_entropies(logits.detach().double(), torch.tensor([0, 1, 2, 0]), 0.9)
    assert logprobs.dtype == entropies.dtype == torch.float32
    torch.testing.assert_close(logprobs.double(), exact, rtol=1e-6, atol=1e-6)
    logprobs.sum().backward()
    assert logits.grad is not None
    assert logits.grad.dtype == torch.bfloat16
