"""KL-Cov: Cui et al., 2025, "The entropy mechanism of reinforcement learning for reasoning language models"."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar

from marl_ray.credit.requirements import Requirements
from marl_ray.learning.losses.policy_loss import LossRatios, LossTokens, PolicyLoss
from marl_ray.learning.losses.ratios import no_token, token_ratios
from marl_ray.plugins.covariance_losses.covariance import TokenCovariances

if TYPE_CHECKING:
    from torch import Tensor


class PenalizedCovariances(PolicyLoss):
    """The loss `kl_cov`: -sum(r * weight), where r = pi / old, plus the sum of |weight| * |log r| over the tokens with
    the highest covariances, which are so kept near the policy before the batch.

    The published penalty has the factor 1 in place of |weight|. With |weight| the strength of the penalty does not
    depend on the unit of the reward.
    """

    requirements = Requirements(several_optimizer_steps=True)
    needs_whole_mini_batch = True
    fraction: ClassVar[float] = 2e-3
    """Share of a mini-batch's tokens that are penalised, at least one of them, as published for models of 7B."""
    coefficient: ClassVar[float] = 1.0
    """Coefficient of the penalty, as published."""

    _covariances = TokenCovariances(0.0, 0.0, 0.0)
    _threshold = math.inf

    def start_tokens(self, tokens: LossTokens) -> None:
        self._covariances = TokenCovariances.of(tokens)
        ordered = self._covariances(tokens).sort(descending=True).values
        count = max(1, int(self.fraction * len(ordered)))
        self._threshold = -math.inf
        if count < len(ordered):
            # Between the last penalised and the first other token, so that recomputed covariances are classified alike.
            self._threshold = float(ordered[count - 1 : count + 1].mean())

    def token_loss(self, tokens: LossTokens) -> tuple[Tensor, LossRatios | None]:
        log_ratios = tokens.logprobs - tokens.old_logprobs
        ratios = token_ratios(tokens.logprobs, tokens.old_logprobs)
        penalized = self._covariances(tokens) > self._threshold
        penalty = self.coefficient * (tokens.weights.abs() * log_ratios.abs() * penalized).sum()
        loss = penalty - (ratios * tokens.weights).sum()
        return loss, LossRatios(log_ratios.detach(), ratios.detach(), no_token(ratios.detach()))
