"""Log-probabilities and entropies of sampled tokens, computed from logits in memory-efficient chunks.

Logits have the width of the vocabulary: for 2,000 tokens of SmolLM2's 49,152 words one copy is 400 MB, and a direct
implementation makes four. Here logits are read in chunks, forward and backward, and only their gradient has their size.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.nn.functional import linear, pad

NO_TOKEN = -100
"""Marker of positions without a predicted token."""
CPU_CHUNK_NUMBERS = 2**20
"""Numbers per chunk on a CPU, where a chunk fits the cache."""
GPU_CHUNK_NUMBERS = 2**26
"""Numbers per chunk on a GPU, where a chunk occupies all units."""
MIN_CHUNK_ROWS = 32
"""Minimum rows per chunk."""
HEAD_CHUNK_NUMBERS = 2**28
"""Logits that are in memory at a time if they are computed in chunks: enough to occupy a GPU with few sums."""


def token_logprobs_and_entropies(
    logits: torch.Tensor,
    tokens: torch.Tensor,
    temperature: float,
    entropy_gradient: bool = False,
    allowed: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return log pi of each token at the temperature, and its distribution's entropy in nats; [S], float32 or wider.

    `logits` [S, V]; `tokens` [S], or NO_TOKEN, where log-probability and its gradient are 0. Entropies have
    a gradient only with `entropy_gradient`. `allowed` [S, words] has a bit per token of the vocabulary, 32 per int32:
    tokens without a bit have probability 0. None: all tokens are allowed.
    """
    if allowed is None:
        allowed = _all_allowed(tokens)
    result: tuple[torch.Tensor, torch.Tensor] = _Chosen.apply(logits, tokens, allowed, temperature, entropy_gradient)
    return result


def head_logprobs_and_entropies(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    tokens: torch.Tensor,
    temperature: float,
    entropy_gradient: bool = False,
    allowed: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return `token_logprobs_and_entropies` of the logits `hidden @ weight.T + bias`, without memory for all of them.

    Logits are computed for HEAD_CHUNK_NUMBERS at a time, and again in the backward pass. `hidden` [S, H] and `weight`
    [V, H] have one dtype, in which the gradient of `weight` is summed over chunks.
    """
    if allowed is None:
        allowed = _all_allowed(tokens)
    result: tuple[torch.Tensor, torch.Tensor] = _ChosenOfHead.apply(
        hidden, weight, bias, tokens, allowed, temperature, entropy_gradient
    )
    return result


def _all_allowed(tokens: torch.Tensor) -> torch.Tensor:
    """Return a mask of no words, which allows all tokens."""
    return tokens.new_zeros((len(tokens), 0), dtype=torch.int32)


class _Chosen(torch.autograd.Function):
    """Autograd function with p = softmax(logits / T), d log p[token] / d logits = (onehot(token) - p) / T, and for the
    entropy H = -sum(p log p), d H / d logits = -p (log p + H) / T."""

    @staticmethod
    def forward(
        ctx: Any,
        logits: torch.Tensor,
        tokens: torch.Tensor,
        allowed: torch.Tensor,
        temperature: float,
        entropy_gradient: bool,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        real = tokens != NO_TOKEN
        columns = tokens.where(real, 0).unsqueeze(1)
        logprobs, entropies, normalizers = _measure(logits, columns, allowed, temperature)
        ctx.save_for_backward(logits, columns, allowed, real, normalizers, entropies)
        ctx.temperature = temperature
        ctx.entropy_gradient = entropy_gradient
        if not entropy_gradient:
            ctx.mark_non_differentiable(entropies)
        return logprobs.where(real, 0.0), entropies

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None, None, None]:
        logits, columns, allowed, real, normalizers, entropies = ctx.saved_tensors
        factors = _factors(ctx, gradients, real)
        gradient = torch.empty_like(logits)
        of_tokens = (columns, allowed, normalizers, factors, entropies.unsqueeze(1))
        _differentiate(logits, *of_tokens, ctx.temperature, ctx.entropy_gradient, gradient)
        return gradient, None, None, None, None


class _ChosenOfHead(torch.autograd.Function):
    """`_Chosen` of a linear layer's output, which is never in memory as a whole."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        tokens: torch.Tensor,
        allowed: torch.Tensor,
        temperature: float,
        entropy_gradient: bool,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        real = tokens != NO_TOKEN
        columns = tokens.where(real, 0).unsqueeze(1)
        rows = max(1, HEAD_CHUNK_NUMBERS // len(weight))
        parts = zip(hidden.split(rows), columns.split(rows), allowed.split(rows), strict=True)
        measured = [_measure(linear(part, weight, bias), column, mask, temperature) for part, column, mask in parts]
        logprobs, entropies, normalizers = map(torch.cat, zip(*measured, strict=True))
        ctx.save_for_backward(hidden, weight, bias, columns, allowed, real, normalizers, entropies)
        ctx.temperature = temperature
        ctx.entropy_gradient = entropy_gradient
        ctx.rows = rows
        if not entropy_gradient:
            ctx.mark_non_differentiable(entropies)
        return logprobs.where(real, 0.0), entropies

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        hidden, weight, bias, columns, allowed, real, normalizers, entropies = ctx.saved_tensors
        factors = _factors(ctx, gradients, real)
        needs_hidden, needs_weight, needs_bias, *_ = ctx.needs_input_grad
        of_hidden = torch.zeros_like(hidden) if needs_hidden else None
        of_weight = torch.zeros_like(weight) if needs_weight else None
        of_bias = torch.zeros_like(bias) if needs_bias else None
        tensors = (hidden, columns, allowed, normalizers, factors, entropies.unsqueeze(1))
        start = 0
        parts = zip(*(tensor.split(ctx.rows) for tensor in tensors), strict=True)
        for part, column, mask, normalizer, factor, entropy in parts:
            logits = linear(part, weight, bias)  # again, because they were too large to keep
            # From here on `logits` has their gradient.
            of_tokens = (column, mask, normalizer, factor, entropy)
            _differentiate(logits, *of_tokens, ctx.temperature, ctx.entropy_gradient, logits)
            if of_hidden is not None:
                torch.mm(logits, weight, out=of_hidden[start : start + len(part)])
            if of_weight is not None:
                of_weight.addmm_(logits.T, part)
            if of_bias is not None:
                of_bias += logits.sum(0)
            start += len(part)
        return of_hidden, of_weight, of_bias, None, None, None, None


def _measure(
    logits: torch.Tensor, columns: torch.Tensor, allowed: torch.Tensor, temperature: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return log-probabilities of the columns' tokens, entropies, [S] each, and each row's maximum and log-sum."""
    normalizers = []
    logprobs = []
    entropies = []
    for part, column, mask in _chunks(logits, columns, allowed):
        scores = _scores(part, mask, temperature)
        # Two subtractions, of the maximum and of the log-sum, so that large scores lose no precision.
        maximum = scores.amax(-1, keepdim=True)
        logs = scores - maximum
        log_sum = logs.exp().sum(-1, keepdim=True).log()
        logs.sub_(log_sum)
        normalizers.append(torch.cat([maximum, log_sum], 1))
        logprobs.append(logs.gather(1, column).squeeze(1))
        finite = logs.clamp(min=torch.finfo(logs.dtype).min)  # so that 0 * finite is 0
        probabilities = logs.exp_()  # in place: a chunk has the width of the vocabulary
        entropies.append(-probabilities.mul_(finite).sum(-1))
    return torch.cat(logprobs), torch.cat(entropies), torch.cat(normalizers)


def _factors(ctx: Any, gradients: tuple[torch.Tensor, ...], real: torch.Tensor) -> torch.Tensor:
    """Return the gradients of log-probabilities and entropies by the temperature, [S, 2]."""
    return torch.stack([gradients[0].where(real, 0.0), gradients[1]], 1) / ctx.temperature


def _differentiate(
    logits: torch.Tensor,
    columns: torch.Tensor,
    allowed: torch.Tensor,
    normalizers: torch.Tensor,
    factors: torch.Tensor,
    entropies: torch.Tensor,
    temperature: float,
    entropy_gradient: bool,
    gradient: torch.Tensor,
) -> None:
    """Write the gradient with respect to the logits into `gradient`, which may be `logits`."""
    parts = _chunks(logits, columns, allowed, normalizers, factors, entropies, gradient)
    for part, column, mask, normalizer, factor, entropy, into in parts:
        logs = _scores(part, mask, temperature) - normalizer[:, :1]
        logs.sub_(normalizer[:, 1:])
        # (onehot(token) - p) / T
        derivative = logs.exp() if entropy_gradient else logs.exp_()
        derivative.mul_(-factor[:, :1]).scatter_add_(1, column, factor[:, :1])
        if entropy_gradient:
            # -p (log p + H) / T
            logs.clamp_(min=torch.finfo(logs.dtype).min)  # so that 0 * logs is 0
            derivative.sub_(logs.exp() * (logs + entropy) * factor[:, 1:])
        into.copy_(derivative)


def _scores(logits: torch.Tensor, allowed: torch.Tensor, temperature: float) -> torch.Tensor:
    """Return logits / T, and -inf for tokens that are not allowed, float32 or wider."""
    scores = logits
    if scores.dtype != torch.float64:
        scores = scores.float()
    if temperature != 1:
        scores = scores / temperature
    if not allowed.shape[1]:
        return scores
    bits = (allowed.unsqueeze(-1) >> torch.arange(32, dtype=torch.int32, device=allowed.device)) & 1
    vocabulary = scores.shape[1]
    known = bits.flatten(1)[:, :vocabulary].bool()
    # Models may have more rows of logits than the tokenizer has tokens.
    known = pad(known, (0, vocabulary - known.shape[1]))
    return scores.masked_fill(~known, -torch.inf)


def _chunks(logits: torch.Tensor, *others: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    """Yield rows of the logits and of other tensors, as many as fit into a chunk."""
    numbers = CPU_CHUNK_NUMBERS if logits.device.type == "cpu" else GPU_CHUNK_NUMBERS
    rows = max(MIN_CHUNK_ROWS, numbers // logits.shape[1])
    return zip(*(tensor.split(rows) for tensor in (logits, *others)), strict=True)
