"""Tokens for tests of losses that are written per token."""

from __future__ import annotations

import torch
from hypothesis import strategies as st

from marl_ray.learning.losses.policy_loss import LossRatios, LossTokens, PolicyLoss

logprobs = st.floats(-6, -0.001)
token_lists = st.lists(st.tuples(logprobs, logprobs, st.floats(-2, 2)), min_size=1, max_size=12)
Token = tuple[float, float, float]
"""Log-probability of the policy, log-probability before (of the sampler and of the old policy alike) and weight."""


def tokens_of(given: list[Token]) -> LossTokens:
    new, old, weights = torch.tensor(given, dtype=torch.float64).T
    return LossTokens(new.clone().requires_grad_(), old, old, weights, torch.arange(len(given)))


def computed(function: PolicyLoss, given: list[Token]) -> tuple[float, list[float], LossRatios]:
    """Return value, gradient in the log-probabilities, and ratios."""
    tokens = tokens_of(given)
    if function.needs_whole_mini_batch:
        with torch.no_grad():
            function.start_tokens(tokens)
    total, ratios = function.token_loss(tokens)
    assert ratios is not None
    return float(total.detach()), torch.autograd.grad(total, tokens.logprobs)[0].tolist(), ratios
