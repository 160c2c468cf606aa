"""Estimates of KL(pi || reference) from sampled tokens: Schulman, 2020, "Approximating KL divergence"."""

from __future__ import annotations

from torch import Tensor


def k1(logprobs: Tensor, reference: Tensor) -> Tensor:
    """Return log pi - log reference of each token, [S], whose mean under pi is KL(pi || reference)."""
    return logprobs - reference


def k2(logprobs: Tensor, reference: Tensor) -> Tensor:
    """Return (log pi - log reference)^2 / 2 of each token, [S], whose gradient is k1 times that of log pi.

    The mean of this gradient under pi is that of KL(pi || reference): k1, without a gradient, is the token's advantage
    (Liu et al., 2025, "Rethinking KL regularization in RLHF: from value estimation to gradient optimization").
    """
    return (logprobs - reference).square() / 2


def k3(logprobs: Tensor, reference: Tensor) -> Tensor:
    """Return r - 1 - log r with r = reference / pi of each token, [S]: k1's mean with less variance, never negative."""
    gap = reference - logprobs
    return gap.expm1() - gap
