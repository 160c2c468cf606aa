"""Clip-Cov (Cui et al., 2025, "The entropy mechanism of reinforcement learning for reasoning language models")."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from marl_ray.learning import losses
from marl_ray.learning.loss_variants.covariance import TokenCovariances
from marl_ray.learning.policy_losses import LossRatios, LossTokens, PolicyLoss

KNUTH = 2_654_435_761
"""Multiplier of a hash of 32 bits, close to 2^32 divided by the golden ratio."""


class DroppedCovariances(PolicyLoss):
    """The loss `clip_cov`: a few random tokens with a high covariance have no gradient, which keeps entropy.

    The dropped tokens are drawn by a hash of the sampler's log-probability, so that a token has the same draw in any
    micro-batch and on any rank. Other tokens have the ratio pi / old as their factor.
    """

    needs_whole_mini_batch = True
    fraction: ClassVar[float] = 2e-4
    """Share of a mini-batch's tokens that are dropped, at least one of them, as published."""
    bounds: ClassVar[tuple[float, float]] = (1.0, 5.0)
    """Covariances between which tokens may be dropped, as published."""

    _covariances = TokenCovariances(0.0, 0.0, 0.0)
    _largest_draw = -1

    def start_tokens(self, tokens: LossTokens) -> None:
        self._covariances = TokenCovariances.of(tokens)
        drawn = draws(tokens.behaviour_logprobs)[self._is_high(tokens)].sort().values
        count = max(1, int(self.fraction * len(tokens.weights)))
        self._largest_draw = int(drawn[min(count, len(drawn)) - 1]) if len(drawn) else -1

    def token_loss(self, tokens: LossTokens) -> tuple[Tensor, LossRatios | None]:
        dropped = self._is_high(tokens) & (draws(tokens.behaviour_logprobs) <= self._largest_draw)
        ratios = losses.token_ratios(tokens.logprobs, tokens.old_logprobs)
        statistics = LossRatios(tokens.logprobs.detach() - tokens.old_logprobs, ratios.detach(), dropped)
        return -(ratios * tokens.weights).masked_fill(dropped, 0.0).sum(), statistics

    def _is_high(self, tokens: LossTokens) -> Tensor:
        low, high = self.bounds
        covariances = self._covariances(tokens)
        return (covariances > low) & (covariances < high)


def draws(logprobs: Tensor) -> Tensor:
    """Return a whole number below 2^32 for each token, [S], that depends on the bits of its log-probability only."""
    bits = logprobs.float().contiguous().view(torch.int32).long()
    return (bits * KNUTH) % 2**32
