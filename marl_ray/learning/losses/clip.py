"""PPO: Schulman et al., 2017, "Proximal policy optimization algorithms"; with two bounds, as in DAPO's clip-higher (Yu
et al., 2025, "DAPO: an open-source LLM reinforcement learning system at scale")."""

from __future__ import annotations

from typing import TYPE_CHECKING

from marl_ray.credit.requirements import Requirements
from marl_ray.learning.losses.policy_loss import ClipOptions, LossRatios, LossTokens, PolicyLoss
from marl_ray.learning.losses.ratios import clipped_loss, is_clipped, token_ratios

if TYPE_CHECKING:
    from torch import Tensor


class TokenClip(PolicyLoss):
    """The loss `clip`: -sum(min(r * weight, clip(r, 1 - clip_low, 1 + clip_high) * weight)), where r = pi / old is the
    ratio of a token to the policy before the batch's first optimizer step."""

    requirements = Requirements(several_optimizer_steps=True)
    defaults = ClipOptions(clip_low=0.2, clip_high=0.28)  # DAPO's
    options: ClipOptions

    def token_loss(self, tokens: LossTokens) -> tuple[Tensor, LossRatios | None]:
        ratios = token_ratios(tokens.logprobs, tokens.old_logprobs)
        return self._clipped(tokens, ratios, tokens.weights)

    def _clipped(self, tokens: LossTokens, ratios: Tensor, weights: Tensor) -> tuple[Tensor, LossRatios]:
        """Return the clipped loss of ratios per token or per completion, and their statistics."""
        low, high = self.options.bounds
        values = ratios.detach()
        log_ratios = tokens.logprobs.detach() - tokens.old_logprobs
        statistics = LossRatios(log_ratios, values, is_clipped(values, weights, low, high))
        return clipped_loss(ratios, weights, low, high), statistics
