"""GMPO (Zhao et al., 2025, "Geometric-mean policy optimization")."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from marl_ray.learning import losses
from marl_ray.learning.policy_losses import LossRatios, LossTokens, PolicyLoss


class GeometricMean(PolicyLoss):
    """The loss `gmpo`: the geometric mean of a completion's ratios, each clipped on the side it is pushed to.

    As in `gspo`, one outlier among many tokens hardly changes the mean, but here tokens are clipped one by one, so the
    bounds can be wide.
    """

    def token_loss(self, tokens: LossTokens) -> tuple[Tensor, LossRatios | None]:
        low, high = self.settings.clip_range
        log_ratios = tokens.logprobs - tokens.old_logprobs
        values = log_ratios.detach()
        clipped = losses.is_clipped(values.exp(), tokens.weights, low, high)
        bounded = log_ratios.where(~clipped, values.clamp(math.log(low) if low else -math.inf, math.log(high)))
        lengths = losses.lengths_of(tokens.owners)
        sums = torch.zeros(len(lengths), dtype=values.dtype, device=values.device)
        means = (sums.index_add(0, tokens.owners, bounded.detach()) / lengths).exp()
        own = (bounded - bounded.detach()).exp()  # 1, with the gradient of the token's log-ratio
        total = -(tokens.weights / lengths[tokens.owners] * means[tokens.owners] * own).sum()
        return total, LossRatios(values, values.exp(), clipped)
