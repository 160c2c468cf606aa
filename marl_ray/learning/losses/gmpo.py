"""GMPO: Zhao et al., 2025, "Geometric-mean policy optimization"."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from marl_ray.credit.requirements import Requirements
from marl_ray.learning.losses.policy_loss import ClipOptions, LossRatios, LossTokens, PolicyLoss
from marl_ray.learning.losses.ratios import is_clipped, lengths_of

if TYPE_CHECKING:
    from torch import Tensor


class GeometricMean(PolicyLoss):
    """The loss `gmpo`: -sum over completions of weight * (product of clipped r)^(1 / length), where r = pi / old of a
    token is clipped on the side to which the weight pushes it.

    As in `gspo`, one outlier among many tokens hardly changes the mean, but here tokens are clipped one by one, so the
    bounds can be wide.
    """

    requirements = Requirements(several_optimizer_steps=True, loss_aggregation="sequence_sum")
    defaults = ClipOptions(clip_low=0.33, clip_high=0.49)  # the authors'
    options: ClipOptions

    def token_loss(self, tokens: LossTokens) -> tuple[Tensor, LossRatios | None]:
        low, high = self.options.bounds
        lowest = math.log(low) if low else -math.inf  # clip_low 1 is no bound
        log_ratios = tokens.logprobs - tokens.old_logprobs
        values = log_ratios.detach()
        clipped = is_clipped(values.exp(), tokens.weights, low, high)
        bounded = log_ratios.where(~clipped, values.clamp(lowest, math.log(high)))

        lengths = lengths_of(tokens.owners)
        sums = values.new_zeros(len(lengths)).index_add(0, tokens.owners, bounded.detach())
        means = (sums / lengths).exp()
        weights = tokens.weights / lengths[tokens.owners]
        one = (bounded - bounded.detach()).exp()  # with the gradient of the token's log-ratio
        loss = -(weights * means[tokens.owners] * one).sum()
        return loss, LossRatios(values, values.exp(), clipped)
