"""From logits to the log-probabilities of the tokens that were sampled, and the entropies around them.

Logits are as wide as the vocabulary: for 2,000 tokens of SmolLM2's 49,152 words one copy is 400 MB. What one would
write down (scale, log-softmax, choose; softmax, entropy) makes four such copies and reads them a dozen times. Here
they are read in portions that stay in a cache, forwards and backwards, and only their gradient is as large beside them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

NO_TOKEN = -100
"""Where nothing is predicted."""
CPU_PORTION, GPU_PORTION = 2**20, 2**26
"""Numbers of a portion: on a CPU they fit its cache, on a GPU each of its operations has enough to do."""
LEAST = 32
"""Rows of a portion at least, so that an operation is worth its call."""


def token_logprobs_and_entropies(
    logits: torch.Tensor, tokens: torch.Tensor, temperature: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """log pi of each token at the temperature, and the entropy of what it was drawn from in nats, both [S], float32 (or
    float64 of float64).

    `logits` [S, V]; `tokens` [S], or NO_TOKEN, where both log-probability and gradient are 0. Entropies have no
    gradient.
    """
    found: tuple[torch.Tensor, torch.Tensor] = _Chosen.apply(logits, tokens, temperature)
    return found


class _Chosen(torch.autograd.Function):
    """With p = softmax(logits / T): d log p[token] / d logits = (onehot(token) - p) / T."""

    @staticmethod
    def forward(
        ctx: Any, logits: torch.Tensor, tokens: torch.Tensor, temperature: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        there = tokens != NO_TOKEN
        columns = tokens.where(there, 0).unsqueeze(1)
        normalizers, logprobs, entropies = [], [], []
        for part, column in _portions(logits, columns):
            scores = _scores(part, temperature)
            top = scores.amax(-1, keepdim=True)
            own = scores - top  # in two steps, so that no digits are lost to scores that are large
            rest = own.exp().sum(-1, keepdim=True).log()
            own.sub_(rest)
            normalizers.append(torch.cat([top, rest], 1))
            logprobs.append(own.gather(1, column).squeeze(1))
            finite = own.clamp(min=torch.finfo(own.dtype).min)  # so that 0 times it is 0
            entropies.append(-own.exp_().mul_(finite).sum(-1))
        ctx.save_for_backward(logits, columns, there, torch.cat(normalizers))
        ctx.temperature = temperature
        entropy = torch.cat(entropies)
        ctx.mark_non_differentiable(entropy)
        return torch.cat(logprobs).where(there, 0.0), entropy

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        logits, columns, there, normalizers = ctx.saved_tensors
        factors = (gradients[0].where(there, 0.0) / ctx.temperature).unsqueeze(1)
        found = torch.empty_like(logits)
        for part, column, normalizer, factor, into in _portions(logits, columns, normalizers, factors, found):
            own = _scores(part, ctx.temperature) - normalizer[:, :1]
            own.sub_(normalizer[:, 1:]).exp_().mul_(-factor)
            into.copy_(own.scatter_add_(1, column, factor))
        return found, None, None


def _scores(logits: torch.Tensor, temperature: float) -> torch.Tensor:
    """A portion at the temperature, in float32 at least; itself where nothing is to be done."""
    wide = logits if logits.dtype == torch.float64 else logits.float()
    return wide if temperature == 1 else wide / temperature


def _portions(logits: torch.Tensor, *others: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    """Rows of all of them, so many at a time."""
    numbers = CPU_PORTION if logits.device.type == "cpu" else GPU_PORTION
    rows = max(LEAST, numbers // logits.shape[1])
    return zip(*(tensor.split(rows) for tensor in (logits, *others)), strict=True)
