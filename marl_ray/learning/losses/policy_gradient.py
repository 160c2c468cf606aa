"""The policy gradient: Williams, 1992, "Simple statistical gradient-following algorithms for connectionist
reinforcement learning"."""

from __future__ import annotations

from typing import TYPE_CHECKING

from marl_ray.learning.losses.policy_loss import LossRatios, LossTokens, PolicyLoss

if TYPE_CHECKING:
    from torch import Tensor


class PolicyGradient(PolicyLoss):
    """The loss `policy_gradient`: -sum(weight * log pi)."""

    def token_loss(self, tokens: LossTokens) -> tuple[Tensor, LossRatios | None]:
        return policy_gradient(tokens.logprobs, tokens.weights), None


def policy_gradient(logprobs: Tensor, weights: Tensor) -> Tensor:
    """Return -sum(weight * log pi)."""
    return -(weights * logprobs).sum()
