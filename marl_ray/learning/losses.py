"""Losses and importance factors: pure functions of the S tokens of one micro-batch.

`logprobs` [S] are the policy's, with a gradient. `weights` [S] are the product of the completion's advantage and loss
share (`marl_ray.credit.groups`) and the token's importance factor, without a gradient (for gspo also 1 / length of the
completion). `old` is the learner's own policy before the batch's first optimizer step. docs/explanation/losses.md
compares the losses.
"""

from __future__ import annotations

import math

import torch

Tensor = torch.Tensor


def importance_factors(ratios: Tensor, mode: str, bound: float) -> Tensor:
    """Return each token's importance factor, without a gradient, given rho = old(token) / behaviour(token).

    For losses without clipping `old` is the current policy (the decoupled correction of PPO).

    - none: 1;
    - truncate: min(rho, C) (Ionides, 2008, "Truncated importance sampling"; per token, Yao et al., 2025, "Your
      efficient RL framework secretly brings you off-policy RL training");
    - mask: rho where 1 / C <= rho <= C, otherwise 0.
    """
    ratios = ratios.detach()
    if mode == "none":
        return torch.ones_like(ratios)
    if mode == "truncate":
        return ratios.clamp(max=bound)
    if mode == "mask":
        return ratios.where(~exceeds_bound(ratios, mode, bound), 0.0)
    raise ValueError(f"importance should be none, truncate or mask, not {mode}")


def exceeds_bound(ratios: Tensor, mode: str, bound: float) -> Tensor:
    """Return a mask of the ratios above `bound`, and in mode `mask` also of the ratios below 1 / `bound`."""
    above = ratios > bound
    return above | (ratios < 1 / bound) if mode == "mask" else above


def policy_gradient(logprobs: Tensor, weights: Tensor) -> Tensor:
    """Return -sum(weight * log pi) (Williams, 1992)."""
    return -(weights * logprobs).sum()


def token_ratios(logprobs: Tensor, old: Tensor) -> Tensor:
    """Return pi / old of each token, [S]."""
    return (logprobs - old).exp()


def sequence_ratios(logprobs: Tensor, old: Tensor, owners: Tensor) -> Tensor:
    """Return GSPO's ratio of each token's completion, (pi / old)^(1 / length), [S].

    GSPO is from Zheng et al., 2025, "Group sequence policy optimization"; `owners` [S] number the completions from 0.
    The gradient of each entry is that of the token's own log-probability (the paper's GSPO-token), which has the same
    value and, summed over a completion, the same gradient.
    """
    sums = torch.zeros(int(owners.max()) + 1, dtype=logprobs.dtype, device=logprobs.device)
    means = sums.index_add(0, owners, (logprobs - old).detach()) / lengths_of(owners)
    return means.exp()[owners] * (logprobs - logprobs.detach()).exp()


def lengths_of(owners: Tensor) -> Tensor:
    """Return the number of tokens of each completion."""
    return torch.bincount(owners).clamp(min=1)


def clipped(ratios: Tensor, weights: Tensor, low: float, high: float) -> Tensor:
    """Return -sum(min(ratio * weight, clip(ratio, low, high) * weight)).

    PPO (Schulman et al., 2017) with separate bounds, as in DAPO's clip-higher (Yu et al., 2025).
    """
    return -torch.minimum(ratios * weights, ratios.clamp(low, high) * weights).sum()


def is_clipped(ratios: Tensor, weights: Tensor, low: float, high: float) -> Tensor:
    """Return a mask of the tokens without a gradient in `clipped`, [S]: ratios beyond the bound they are pushed to."""
    return ((ratios > high) & (weights > 0)) | ((ratios < low) & (weights < 0))


def second_moment_threshold(log_ratios: Tensor, bound: float) -> float:
    """Return M2PO's largest |log ratio| that keeps its gradient, given the log-ratios of all tokens of a mini-batch.

    The tokens furthest from 0 are dropped until the mean square of the remaining ones is at most `bound`; ties are
    dropped together. The threshold lies between the last kept and the first dropped value, so that recomputed
    log-ratios are classified alike; it is infinite if all are kept and negative if none is (Zheng et al., 2025,
    "Prosperity before collapse: how far can off-policy RL reach with stale data on LLMs?").
    """
    distances = log_ratios.double().abs().sort().values
    counts = torch.arange(1, len(distances) + 1, device=distances.device)
    kept = int((distances.square().cumsum(0) / counts <= bound).sum())  # these means are non-decreasing
    if kept == len(distances):
        return math.inf
    within = distances[distances < distances[kept]]
    return float(within[-1] + distances[kept]) / 2 if len(within) else -1.0


def second_moment(log_ratios: Tensor, weights: Tensor, threshold: float) -> Tensor:
    """Return -sum(ratio * weight) over the tokens with |log ratio| <= threshold."""
    kept = log_ratios.detach().abs() <= threshold
    return -(log_ratios.where(kept, 0.0).exp() * weights * kept).sum()


def k1(logprobs: Tensor, reference: Tensor) -> Tensor:
    """Return log pi - log reference of each token, [S], whose mean under pi is KL(pi || reference).

    k1, k2 and k3 are from Schulman, 2020, "Approximating KL divergence".
    """
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
