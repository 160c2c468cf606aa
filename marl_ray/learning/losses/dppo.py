"""DPPO: Qi et al., 2026, "Rethinking the trust region in LLM reinforcement learning"; with the total variation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from marl_ray.credit.requirements import Requirements
from marl_ray.learning.losses.policy_gradient import policy_gradient
from marl_ray.learning.losses.policy_loss import ClipOptions, LossRatios, LossTokens, PolicyLoss

if TYPE_CHECKING:
    from torch import Tensor

MAX_RATIO = 20.0
"""Largest weight of a token, the authors' bound of truncated importance sampling."""


class TotalVariation(PolicyLoss):
    """The loss `dppo`: -sum(min(r, 20) * weight * log pi) over the tokens within the trust region, where r = pi / mu is
    the ratio to the sampler mu, without a gradient.

    The trust region bounds the divergence between the distributions (token, any other token), here their total
    variation |pi - mu|, in place of the ratio: a rare token may become many times as likely, and a frequent token may
    not lose much. `clip_low` and `clip_high` bound the divergence of tokens that become less and more likely.
    """

    requirements = Requirements(off_policy_tokens=True, own_importance_ratio=True)
    defaults = ClipOptions(clip_low=0.15, clip_high=0.15)  # the authors'
    options: ClipOptions

    def token_loss(self, tokens: LossTokens) -> tuple[Tensor, LossRatios | None]:
        logprobs = tokens.logprobs.detach()
        log_ratios = logprobs - tokens.behaviour_logprobs
        divergences = self.divergences(logprobs, tokens.behaviour_logprobs)
        low, high = self.options.bounds
        # Distances from 1 again, with the rounding of `bounds`.
        rises_too_far = (log_ratios > 0) & (tokens.weights > 0) & (divergences > abs(high - 1))
        falls_too_far = (log_ratios < 0) & (tokens.weights < 0) & (divergences > abs(low - 1))
        stopped = rises_too_far | falls_too_far
        ratios = log_ratios.exp()
        factors = ratios.clamp(max=MAX_RATIO).masked_fill(stopped, 0.0)
        loss = policy_gradient(tokens.logprobs, tokens.weights * factors)
        return loss, LossRatios(log_ratios, ratios, stopped)

    def divergences(self, logprobs: Tensor, behaviour: Tensor) -> Tensor:
        """Return the total variation of each token, [S]."""
        return (logprobs.exp() - behaviour.exp()).abs()
