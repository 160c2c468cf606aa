"""SAPO (Gao et al., 2025, "Soft adaptive policy optimization")."""

from __future__ import annotations

import torch
from torch import Tensor

from marl_ray.learning.policy_losses import LossRatios, LossTokens, PolicyLoss

POSITIVE, NEGATIVE = 1.0, 1.05
"""Temperatures tau of the gate for tokens with a positive and with a negative weight, as published."""


class SoftGate(PolicyLoss):
    """The loss `sapo`: a smooth gate 4 / tau * sigmoid(tau * (ratio - 1)) in place of a clipped ratio.

    The gradient of the gate is 1 at a ratio of 1 and falls on both sides, faster for negative weights, which raise the
    probabilities of many other tokens at once.
    """

    def token_loss(self, tokens: LossTokens) -> tuple[Tensor, LossRatios | None]:
        log_ratios = tokens.logprobs - tokens.old_logprobs
        tau = torch.full_like(tokens.weights, NEGATIVE).masked_fill(tokens.weights > 0, POSITIVE)
        gates = 4 / tau * torch.sigmoid(tau * log_ratios.expm1())
        values = log_ratios.detach()
        statistics = LossRatios(values, values.exp(), torch.zeros_like(values, dtype=torch.bool))
        return -(gates * tokens.weights).sum(), statistics
