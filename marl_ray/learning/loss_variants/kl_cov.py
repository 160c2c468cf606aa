"""KL-Cov (Cui et al., 2025, "The entropy mechanism of reinforcement learning for reasoning language models")."""

from __future__ import annotations

import math
from typing import ClassVar

from torch import Tensor

from marl_ray.learning import losses
from marl_ray.learning.loss_variants.covariance import TokenCovariances
from marl_ray.learning.policy_losses import LossRatios, LossTokens, PolicyLoss


class PenalizedCovariances(PolicyLoss):
    """The loss `kl_cov`: the tokens with the highest covariances are kept near the policy before the batch.

    Their penalty is |log pi - log old|, weighted like the policy gradient: by |A| in place of the published 1, so that
    its strength does not depend on the unit of the reward. All tokens have the ratio pi / old as their factor.
    """

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
        # Between the last penalised and the first other token, so that recomputed covariances are classified alike.
        self._threshold = float(ordered[count - 1 : count + 1].mean()) if count < len(ordered) else -math.inf

    def token_loss(self, tokens: LossTokens) -> tuple[Tensor, LossRatios | None]:
        log_ratios = tokens.logprobs - tokens.old_logprobs
        penalized = self._covariances(tokens) > self._threshold
        ratios = losses.token_ratios(tokens.logprobs, tokens.old_logprobs)
        penalties = self.coefficient * (tokens.weights.abs() * log_ratios.abs() * penalized).sum()
        statistics = LossRatios(log_ratios.detach(), ratios.detach(), penalized & False)
        return penalties - (ratios * tokens.weights).sum(), statistics
