"""DPPO (Qi et al., 2026, "Rethinking the trust region in LLM reinforcement learning")."""

from __future__ import annotations

import torch
from torch import Tensor

from marl_ray.learning import losses
from marl_ray.learning.policy_losses import LossRatios, LossTokens, PolicyLoss

MAX_RATIO = 20.0
"""Largest weight of a token, the authors' bound of truncated importance sampling."""
SMALLEST = 1e-8
"""Smallest probability of all other tokens."""


class TotalVariation(PolicyLoss):
    """The loss `dppo`: a token loses its gradient if the policy has moved its probability too far from the sampler's.

    The trust region bounds the divergence between the distributions (token, any other token), here their total
    variation |pi - mu|, in place of the ratio pi / mu: a rare token may become many times as likely, and a frequent
    token may not lose much. `clip_low` and `clip_high` bound the divergence of tokens that become less and more likely.
    """

    def token_loss(self, tokens: LossTokens) -> tuple[Tensor, LossRatios | None]:
        low, high = (abs(bound - 1) for bound in self.settings.clip_range)
        log_ratios = tokens.logprobs.detach() - tokens.behaviour_logprobs
        divergences = self.divergences(tokens.logprobs.detach(), tokens.behaviour_logprobs)
        rises = (log_ratios > 0) & (tokens.weights > 0) & (divergences > high)
        stopped = rises | ((log_ratios < 0) & (tokens.weights < 0) & (divergences > low))
        factors = log_ratios.exp().clamp(max=MAX_RATIO).masked_fill(stopped, 0.0)
        loss = losses.policy_gradient(tokens.logprobs, tokens.weights * factors)
        return loss, LossRatios(log_ratios, log_ratios.exp(), stopped)

    def divergences(self, logprobs: Tensor, behaviour: Tensor) -> Tensor:
        """Return the total variation of each token, [S]."""
        return (logprobs.exp() - behaviour.exp()).abs()


class BinaryDivergence(TotalVariation):
    """The loss `dppo_kl`: as `dppo`, with the KL divergence from the sampler, KL(mu || pi), of each token."""

    def divergences(self, logprobs: Tensor, behaviour: Tensor) -> Tensor:
        """Return the KL divergence of each token between the distributions (token, any other token), [S]."""
        sampled = behaviour.exp()
        others = [torch.log((1 - one.exp()).clamp(min=SMALLEST)) for one in (behaviour, logprobs)]
        return sampled * (behaviour - logprobs) + (1 - sampled) * (others[0] - others[1])
