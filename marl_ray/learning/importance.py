"""Importance factors of tokens, which correct for a sampler that differs from the policy.

With a sampler mu and the learner's policy before the batch's first optimizer step, `old`, the ratio of a token is rho =
old(token) / mu(token) (the decoupled correction of PPO). For losses without clipping `old` is the current policy.
"""

from __future__ import annotations

import torch
from torch import Tensor


def importance_factors(ratios: Tensor, mode: str, bound: float) -> Tensor:
    """Return each token's importance factor, without a gradient, given its ratio rho.

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
    if mode == "mask":
        return above | (ratios < 1 / bound)
    return above
