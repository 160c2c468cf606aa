"""Statistics of one update: ratio statistics summed over micro-batches, and the results of mini-batches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import torch

from marl_ray.core.batch import ClippingStats, ImportanceRatioStats, UpdateStats
from marl_ray.learning.critic import critic_stats
from marl_ray.learning.losses import exceeds_bound

if TYPE_CHECKING:
    from marl_ray.learning.gradient_accumulator import GradientAccumulator


class _TokenSums:
    """Sums and one maximum over tokens, in float64 (where ratios do not overflow), added up over micro-batches and
    ranks."""

    def __init__(self, size: int) -> None:
        self.tokens = 0
        self._sums = [0.0] * size
        self._max = 0.0

    def _add(self, tokens: int, sums: Sequence[torch.Tensor], maximum: torch.Tensor) -> None:
        *values, largest = torch.stack([*sums, maximum]).tolist()  # one synchronisation with the device
        self.tokens += tokens
        self._sums = [total + value for total, value in zip(self._sums, values, strict=True)]
        self._max = max(self._max, largest)

    def __iadd__(self, other: Self) -> Self:
        self.tokens += other.tokens
        self._sums = [mine + theirs for mine, theirs in zip(self._sums, other._sums, strict=True)]
        self._max = max(self._max, other._max)
        return self


class ImportanceRatioAccumulator(_TokenSums):
    """Statistics of the importance ratios pi(token) / behaviour(token) of trained tokens."""

    def __init__(self, mode: str, bound: float) -> None:
        super().__init__(4)
        self._mode, self._bound = mode, bound

    def add(self, logprobs: torch.Tensor, behaviour_logprobs: torch.Tensor) -> None:
        """Add tokens given by their log-probabilities, both [S] without padding."""
        if not len(logprobs):
            return
        differences = logprobs.detach().double() - behaviour_logprobs.double()
        ratios = differences.exp()
        cut = exceeds_bound(ratios, self._mode, self._bound).sum().double()
        self._add(len(logprobs), [differences.abs().sum(), ratios.sum(), ratios.square().sum(), cut], ratios.max())

    @property
    def logprob_gap(self) -> float:
        """Mean absolute difference of log-probabilities in nats per token. Needs at least one token."""
        return self._sums[0] / self.tokens

    @property
    def stats(self) -> ImportanceRatioStats:
        """Ratio statistics. Needs at least one token."""
        _, total, squares, cut = self._sums
        return ImportanceRatioStats(
            mean=total / self.tokens,
            max=self._max,
            cut=cut / self.tokens,
            effective_sample_size=total * total / (self.tokens * squares) if squares else 0.0,
        )


class ClippingAccumulator(_TokenSums):
    """Statistics of the ratios in the loss, from the policy at which they are 1: KL and fraction of clipped tokens."""

    def __init__(self) -> None:
        super().__init__(3)

    def add(self, log_ratios: torch.Tensor, ratios: torch.Tensor, clipped: torch.Tensor) -> None:
        """Add tokens given by log pi - log old, the ratio in the loss, and whether their gradient is zero; all [S]."""
        if not len(log_ratios):
            return
        own = log_ratios.double()
        sums = [clipped.sum().double(), ratios.double().sum(), (own.exp() - 1 - own).sum()]
        self._add(len(log_ratios), sums, ratios.double().max())

    @property
    def stats(self) -> ClippingStats | None:
        """Statistics, or None without a token."""
        if not self.tokens:
            return None
        clipped, ratios, kl = (total / self.tokens for total in self._sums)
        return ClippingStats(clipped, ratios, self._max, kl)


@dataclass(frozen=True, slots=True)
class MiniBatchResult:
    """The result of one mini-batch.

    taken: an optimizer step was taken. skipped: the step was skipped because a loss or gradient is not finite. Neither
    holds if the gradient is zero. gradient: its statistics were taken before the step.
    """

    loss: float
    grad_norm: float
    taken: bool
    skipped: bool
    gradient: GradientAccumulator
    critic_loss: float


def summarize_update(results: Sequence[MiniBatchResult], learning_rate: float) -> UpdateStats:
    """Return the statistics of a batch's mini-batches; `learning_rate` is that of the first optimizer step."""
    finite = [result for result in results if not result.skipped]
    first = next((result.gradient for result in results if result.gradient.importance_ratios.tokens), None)
    clipping = ClippingAccumulator()
    for result in results:
        clipping += result.gradient.clipping
    value_estimates = [estimate for result in results for estimate in result.gradient.value_estimates]
    return UpdateStats(
        loss=_mean([result.loss for result in finite]) if results else 0.0,
        grad_norm=_mean([result.grad_norm for result in finite]) if results else 0.0,
        learning_rate=learning_rate,
        logprob_gap=None if first is None else first.importance_ratios.logprob_gap,
        importance_ratios=None if first is None else first.importance_ratios.stats,
        optimizer_steps=sum(result.taken for result in results),
        skipped_steps=sum(result.skipped for result in results),
        entropy=None if first is None else first.entropy,
        clipping=clipping.stats,
        reference_kl=None if first is None else first.reference_kl,
        critic=critic_stats([result.critic_loss for result in results], value_estimates),
    )


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else math.nan
