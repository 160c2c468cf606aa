"""Tokens for tests of losses that are written per token."""

from __future__ import annotations

from pathlib import Path

import torch
from hypothesis import strategies as st

from marl_ray.core.batch import Batch
from marl_ray.learning.losses.policy_loss import LossRatios, LossTokens, PolicyLoss
from tests.learning.builders import build_batch, some_groups, tiny_learner

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


def assert_a_second_step_moves_the_ratios(tiny_policy: Path, name: str) -> tuple[float, float]:
    """Update with the first of two mini-batches and with both. Return mean and largest ratio of the first alone."""
    batch = build_batch(some_groups(20, 5), 10)
    both, first = (tiny_learner(tiny_policy, loss=name, importance="none") for _ in range(2))
    alone, stats = first.update(Batch(0, batch.mini_batches[:1])), both.update(batch)
    assert alone.clipping is not None
    assert stats.clipping is not None
    assert stats.clipping.ratio_max > alone.clipping.ratio_max
    assert stats.optimizer_steps == 2
    return alone.clipping.ratio_mean, alone.clipping.ratio_max
