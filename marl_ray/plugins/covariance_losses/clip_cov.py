"""Clip-Cov: Cui et al., 2025, "The entropy mechanism of reinforcement learning for reasoning language models"."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from marl_ray.credit.requirements import Requirements
from marl_ray.learning.losses.policy_loss import LossRatios, LossTokens, PolicyLoss
from marl_ray.learning.losses.ratios import token_ratios
from marl_ray.plugins.covariance_losses.covariance import TokenCovariances

if TYPE_CHECKING:
    from torch import Tensor

KNUTH = 2_654_435_761
"""Multiplier of a hash of 32 bits, close to 2^32 divided by the golden ratio."""


class DroppedCovariances(PolicyLoss):
    """The loss `clip_cov`: -sum(r * weight), where r = pi / old, without a few random tokens of high covariance.

    The entropy falls by the covariances, so dropping the tokens keeps entropy. They are drawn by a hash of the
    sampler's log-probability, so that a token has the same draw in any micro-batch and on any rank.
    """

    requirements = Requirements(old_logprobs=True)
    needs_whole_mini_batch = True
    fraction: ClassVar[float] = 2e-4
    """Share of a mini-batch's tokens that are dropped, at least one of them, as published."""
    bounds: ClassVar[tuple[float, float]] = (1.0, 5.0)
    """Covariances between which tokens may be dropped, as published."""

    _covariances = TokenCovariances(0.0, 0.0, 0.0)
    _largest_draw = -1

    def start_tokens(self, tokens: LossTokens) -> None:
        self._covariances = TokenCovariances.of(tokens)
        candidates = draws(tokens.behaviour_logprobs)[self._is_high(tokens)].sort().values
        count = max(1, int(self.fraction * len(tokens.weights)))
        self._largest_draw = -1
        if len(candidates):
            last = min(count, len(candidates)) - 1
            self._largest_draw = int(candidates[last])

    def token_loss(self, tokens: LossTokens) -> tuple[Tensor, LossRatios | None]:
        is_drawn = draws(tokens.behaviour_logprobs) <= self._largest_draw
        dropped = self._is_high(tokens) & is_drawn
        ratios = token_ratios(tokens.logprobs, tokens.old_logprobs)
        log_ratios = tokens.logprobs.detach() - tokens.old_logprobs
        loss = -(ratios * tokens.weights).masked_fill(dropped, 0.0).sum()
        return loss, LossRatios(log_ratios, ratios.detach(), dropped)

    def _is_high(self, tokens: LossTokens) -> Tensor:
        low, high = self.bounds
        covariances = self._covariances(tokens)
        return (covariances > low) & (covariances < high)


def draws(logprobs: Tensor) -> Tensor:
    """Return a whole number below 2^32 for each token, [S], that depends on the bits of its log-probability only."""
    import torch  # here, because a config is checked without torch

    bits = logprobs.float().contiguous().view(torch.int32).long()
    return (bits * KNUTH) % 2**32
