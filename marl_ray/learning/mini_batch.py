"""What became of a batch's mini-batches, one by one and as a whole."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from marl_ray.core.batch import UpdateStats
from marl_ray.learning.critic import critic_stats
from marl_ray.learning.gradient_accumulator import GradientAccumulator
from marl_ray.learning.measures import ClippingAccumulator


@dataclass(frozen=True, slots=True)
class MiniBatchResult:
    """What became of one mini-batch: an optimizer step was taken, or skipped for a loss or gradient that is not finite,
    or there was nothing to learn from. What `gradient` says of its tokens is of before the step."""

    loss: float
    grad_norm: float
    taken: bool
    skipped: bool
    gradient: GradientAccumulator
    critic_loss: float


def stats_of(done: Sequence[MiniBatchResult], learning_rate: float) -> UpdateStats:
    """Of a batch's mini-batches; `learning_rate` is that of the first optimizer step."""
    finite = [one for one in done if not one.skipped]
    first = next((one.gradient for one in done if one.gradient.importance_ratios.tokens), None)
    distance = ClippingAccumulator()
    for one in done:
        distance += one.gradient.clipping
    return UpdateStats(
        loss=_mean([one.loss for one in finite]) if done else 0.0,
        grad_norm=_mean([one.grad_norm for one in finite]) if done else 0.0,
        learning_rate=learning_rate,
        logprob_gap=None if first is None else first.importance_ratios.logprob_gap,
        importance_ratios=None if first is None else first.importance_ratios.ratios,
        optimizer_steps=sum(one.taken for one in done),
        skipped_steps=sum(one.skipped for one in done),
        entropy=None if first is None else first.entropy,
        clipping=distance.stats,
        reference_kl=None if first is None else first.reference_kl,
        critic=critic_stats(
            [one.critic_loss for one in done], [v for one in done for v in one.gradient.value_estimates]
        ),
    )


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else math.nan
