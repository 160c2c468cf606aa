"""Covariances of single tokens, of which the change of the policy's entropy is the sum.

Cui et al. (2025, "The entropy mechanism of reinforcement learning for reasoning language models") show that a step of
the policy gradient lowers the entropy by the covariance of advantages and log-probabilities, and that few tokens have
most of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from marl_ray.learning.losses.policy_loss import LossTokens

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class TokenCovariances:
    """The means and the deviation of a mini-batch, from which covariances of its tokens follow in any micro-batch."""

    weight_mean: float
    weight_deviation: float
    logprob_mean: float

    @classmethod
    def of(cls, tokens: LossTokens) -> TokenCovariances:
        """Return the statistics of the tokens of a mini-batch."""
        weights = tokens.weights.double()
        deviation = float(weights.std(correction=0))
        return cls(float(weights.mean()), deviation, float(tokens.logprobs.double().mean()))

    def __call__(self, tokens: LossTokens) -> Tensor:
        """Return (A - mean(A)) * (log pi - mean(log pi)) of each token, [S], without a gradient.

        A is the token's weight in units of the weights' standard deviation, so that bounds on a covariance do not
        depend on the unit of the reward; with whitened advantages it is the advantage. All are 0 if weights are equal.
        """
        if not self.weight_deviation:
            return tokens.weights.double() * 0.0
        scaled = (tokens.weights.double() - self.weight_mean) / self.weight_deviation
        return scaled * (tokens.logprobs.detach().double() - self.logprob_mean)
