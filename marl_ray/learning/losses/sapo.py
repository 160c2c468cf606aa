"""SAPO: Gao et al., 2025, "Soft adaptive policy optimization"."""

from __future__ import annotations

from typing import TYPE_CHECKING

from marl_ray.credit.requirements import Requirements
from marl_ray.learning.losses.policy_loss import LossRatios, LossTokens, PolicyLoss
from marl_ray.learning.losses.ratios import no_token

if TYPE_CHECKING:
    from torch import Tensor

POSITIVE_TAU = 1.0
"""Temperature of the gate for tokens with a positive weight, as published."""
NEGATIVE_TAU = 1.05
"""Temperature of the gate for tokens with a negative weight, as published."""


class SoftGate(PolicyLoss):
    """The loss `sapo`: -sum(4 / tau * sigmoid(tau * (r - 1)) * weight), where r = pi / old.

    The gradient of this smooth gate is 1 at a ratio of 1 and falls on both sides, faster for negative weights, which
    raise the probabilities of many other tokens at once.
    """

    requirements = Requirements(several_optimizer_steps=True)

    def token_loss(self, tokens: LossTokens) -> tuple[Tensor, LossRatios | None]:
        weights = tokens.weights
        log_ratios = tokens.logprobs - tokens.old_logprobs
        tau = weights.new_full(weights.shape, NEGATIVE_TAU).masked_fill(weights > 0, POSITIVE_TAU)
        gates = 4 / tau * (tau * log_ratios.expm1()).sigmoid()
        ratios = log_ratios.detach().exp()
        return -(gates * weights).sum(), LossRatios(log_ratios.detach(), ratios, no_token(ratios))
