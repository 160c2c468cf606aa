"""CISPO: MiniMax, 2025, "MiniMax-M1: scaling test-time compute efficiently with lightning attention"."""

from __future__ import annotations

from typing import TYPE_CHECKING

from marl_ray.credit.requirements import Requirements
from marl_ray.learning.losses.policy_gradient import policy_gradient
from marl_ray.learning.losses.policy_loss import ClipOptions, LossRatios, LossTokens, PolicyLoss
from marl_ray.learning.losses.ratios import no_token

if TYPE_CHECKING:
    from torch import Tensor


class ClippedWeights(PolicyLoss):
    """The loss `cispo`: -sum(clip(r, 1 - clip_low, 1 + clip_high) * weight * log pi), where r = pi / old has no
    gradient.

    No token loses its gradient, so rare tokens that begin a new line of thought still count.
    """

    requirements = Requirements(several_optimizer_steps=True)
    # Like the authors, no lower bound. An upper bound of 5 is in the range that was found good at scale by Khatri et
    # al. (2025, "The art of scaling reinforcement learning compute for LLMs").
    defaults = ClipOptions(clip_low=1.0, clip_high=4.0)
    options: ClipOptions

    def token_loss(self, tokens: LossTokens) -> tuple[Tensor, LossRatios | None]:
        low, high = self.options.bounds
        log_ratios = tokens.logprobs.detach() - tokens.old_logprobs
        ratios = log_ratios.exp()
        loss = policy_gradient(tokens.logprobs, tokens.weights * ratios.clamp(low, high))
        return loss, LossRatios(log_ratios, ratios, no_token(ratios))
