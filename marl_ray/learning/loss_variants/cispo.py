"""CISPO (MiniMax, 2025, "MiniMax-M1: scaling test-time compute efficiently with lightning attention")."""

from __future__ import annotations

import torch
from torch import Tensor

from marl_ray.learning import losses
from marl_ray.learning.policy_losses import LossRatios, LossTokens, PolicyLoss


class ClippedWeights(PolicyLoss):
    """The loss `cispo`: the policy gradient, weighted by the clipped ratio of each token without its gradient.

    No token loses its gradient, so rare tokens that begin a new line of thought still count. Like the authors, the
    default has no lower bound. The default of the upper bound, a weight of 5, is in the range that was found good at
    scale by Khatri et al. (2025, "The art of scaling reinforcement learning compute for LLMs").
    """

    def token_loss(self, tokens: LossTokens) -> tuple[Tensor, LossRatios | None]:
        log_ratios = tokens.logprobs.detach() - tokens.old_logprobs
        ratios = log_ratios.exp()
        factors = ratios.clamp(*self.settings.clip_range)
        statistics = LossRatios(log_ratios, ratios, torch.zeros_like(ratios, dtype=torch.bool))
        return losses.policy_gradient(tokens.logprobs, tokens.weights * factors), statistics
