"""Log-probabilities and entropies of sampled tokens, computed from logits in memory-efficient chunks.

Logits have the width of the vocabulary: for 2,000 tokens of SmolLM2's 49,152 words one copy is 400 MB, and a direct
implementation makes four. Here logits are read in chunks, forward and backward, and only their gradient has their size.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

NO_TOKEN = -100
"""Marker of positions without a predicted token."""
CPU_CHUNK_NUMBERS, GPU_CHUNK_NUMBERS = 2**20, 2**26
"""Numbers per chunk: on a CPU a chunk fits the cache, on a GPU it occupies all units."""
MIN_CHUNK_ROWS = 32
"""Minimum rows per chunk."""


def token_logprobs_and_entropies(
    logits: torch.Tensor, tokens: torch.Tensor, temperature: float, entropy_gradient: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return log pi of each token at the temperature, and its distribution's entropy in nats; [S], float32 or wider.

    `logits` [S, V]; `tokens` [S], or NO_TOKEN, where log-probability and its gradient are 0. Entropies have
    a gradient only with `entropy_gradient`.
    """
    result: tuple[torch.Tensor, torch.Tensor] = _Chosen.apply(logits, tokens, temperature, entropy_gradient)
    return result


class _Chosen(torch.autograd.Function):
    """Autograd function with p = softmax(logits / T), d log p[token] / d logits = (onehot(token) - p) / T, and for the
    entropy H = -sum(p log p), d H / d logits = -p (log p + H) / T."""

    @staticmethod
    def forward(
        ctx: Any, logits: torch.Tensor, tokens: torch.Tensor, temperature: float, entropy_gradient: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        real = tokens != NO_TOKEN
        columns = tokens.where(real, 0).unsqueeze(1)
        normalizers, logprobs, entropies = [], [], []
        for part, column in _chunks(logits, columns):
            scores = _scores(part, temperature)
            maximum = scores.amax(-1, keepdim=True)
            own = scores - maximum  # subtracted separately, so that large scores lose no precision
            log_sum = own.exp().sum(-1, keepdim=True).log()
            own.sub_(log_sum)
            normalizers.append(torch.cat([maximum, log_sum], 1))
            logprobs.append(own.gather(1, column).squeeze(1))
            finite = own.clamp(min=torch.finfo(own.dtype).min)  # so that 0 * finite is 0
            entropies.append(-own.exp_().mul_(finite).sum(-1))
        entropy = torch.cat(entropies)
        ctx.save_for_backward(logits, columns, real, torch.cat(normalizers), entropy)
        ctx.temperature, ctx.entropy_gradient = temperature, entropy_gradient
        if not entropy_gradient:
            ctx.mark_non_differentiable(entropy)
        return torch.cat(logprobs).where(real, 0.0), entropy

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        logits, columns, real, normalizers, entropy = ctx.saved_tensors
        factors = (gradients[0].where(real, 0.0) / ctx.temperature).unsqueeze(1)
        gradient = torch.empty_like(logits)
        for part, column, normalizer, factor, into in _chunks(logits, columns, normalizers, factors, gradient):
            own = _scores(part, ctx.temperature) - normalizer[:, :1]
            own.sub_(normalizer[:, 1:]).exp_().mul_(-factor)
            into.copy_(own.scatter_add_(1, column, factor))
        if ctx.entropy_gradient:
            slopes = (gradients[1] / ctx.temperature).unsqueeze(1)
            parts = _chunks(logits, normalizers, slopes, entropy.unsqueeze(1), gradient)
            for part, normalizer, slope, own_entropy, into in parts:
                own = _scores(part, ctx.temperature) - normalizer[:, :1]
                own.sub_(normalizer[:, 1:]).clamp_(min=torch.finfo(own.dtype).min)  # so that 0 * own is 0
                into.sub_(own.exp() * (own + own_entropy) * slope)
        return gradient, None, None, None


def _scores(logits: torch.Tensor, temperature: float) -> torch.Tensor:
    wide = logits if logits.dtype == torch.float64 else logits.float()
    return wide if temperature == 1 else wide / temperature


def _chunks(logits: torch.Tensor, *others: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    numbers = CPU_CHUNK_NUMBERS if logits.device.type == "cpu" else GPU_CHUNK_NUMBERS
    rows = max(MIN_CHUNK_ROWS, numbers // logits.shape[1])
    return zip(*(tensor.split(rows) for tensor in (logits, *others)), strict=True)
