"""Losses dppo, dppo_kl, clip_cov and kl_cov against their definitions, written per token."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_ray.config import OptimizerConfig
from marl_ray.core.batch import Batch
from marl_ray.learning import LOSSES
from marl_ray.learning.losses.clip_cov import DroppedCovariances
from marl_ray.learning.losses.kl_cov import PenalizedCovariances
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


def loss(name: str, **changes: Any) -> PolicyLoss:
    return LOSSES.get(name)(OptimizerConfig(loss=name, **changes))


def total_variation(new: float, old: float) -> float:
    return (abs(math.exp(new) - math.exp(old)) + abs((1 - math.exp(new)) - (1 - math.exp(old)))) / 2


def kl(new: float, old: float) -> float:
    before, after = math.exp(old), math.exp(new)
    return before * math.log(before / after) + (1 - before) * math.log((1 - before) / (1 - after))


@pytest.mark.parametrize(("name", "divergence"), [("dppo", total_variation), ("dppo_kl", kl)])
@settings(max_examples=200, deadline=None)
@given(given=token_lists)
def test_dppo_stops_tokens_that_leave_the_trust_region(name: str, divergence: Any, given: list[Token]) -> None:
    low, high = 0.1, 0.2
    _, gradient, ratios = computed(loss(name, clip_low=low, clip_high=high), given)
    for number, (new, old, weight) in enumerate(given):
        distance, ratio = divergence(new, old), math.exp(new - old)
        if min(abs(distance - low), abs(distance - high)) < 1e-6:
            continue
        leaves = distance > high if weight > 0 else distance > low
        # Not the sign of the product, which is 0 for the smallest weights.
        away = (new > old and weight > 0) or (new < old and weight < 0)
        expected = 0.0 if leaves and away else -weight * min(ratio, 20.0)
        assert gradient[number] == pytest.approx(expected)
        assert bool(ratios.clipped[number]) == (leaves and away)


def test_dppo_lets_rare_tokens_rise_and_holds_frequent_tokens() -> None:
    rare, frequent = (math.log(1e-3), math.log(1e-5), 1.0), (math.log(0.8), math.log(0.99), -1.0)
    assert computed(loss("clip", clip_low=0.2, clip_high=0.2), [rare, frequent])[1] == pytest.approx([0.0, 0.8 / 0.99])
    assert computed(loss("dppo"), [rare, frequent])[1] == pytest.approx([-20.0, 0.0]), (
        "as published, 0.15 on both sides"
    )


def covariances(given: list[Token]) -> np.ndarray:
    new, _, weights = np.array(given).T
    if not weights.std():
        return np.zeros(len(given))
    return (weights - weights.mean()) / weights.std() * (new - new.mean())


class OftenDropped(DroppedCovariances):
    fraction = 0.25
    bounds = (0.2, 2.0)


class OftenPenalized(PenalizedCovariances):
    fraction = 0.25
    coefficient = 0.5


@settings(max_examples=200, deadline=None)
@given(given=token_lists)
def test_clip_cov_drops_some_tokens_of_high_covariance(given: list[Token]) -> None:
    _, gradient, ratios = computed(OftenDropped(OptimizerConfig()), given)
    values = covariances(given)
    high = {number for number, value in enumerate(values) if 0.2 < value < 2.0}
    dropped = {number for number, one in enumerate(ratios.clipped.tolist()) if one}
    assert dropped <= high
    draws = {np.float32(old) for _, old, _ in given}  # a draw depends on the bits of a float32
    if len(draws) == len(given):  # tokens of one draw are dropped together
        assert len(dropped) == min(len(high), max(1, len(given) // 4))
    for number, (new, old, weight) in enumerate(given):
        assert gradient[number] == pytest.approx(0.0 if number in dropped else -weight * math.exp(new - old))


@settings(max_examples=200, deadline=None)
@given(given=token_lists)
def test_kl_cov_penalizes_the_tokens_of_highest_covariance(given: list[Token]) -> None:
    value, gradient, ratios = computed(OftenPenalized(OptimizerConfig()), given)
    ordered = sorted(covariances(given), reverse=True)
    count = max(1, len(given) // 4)
    if len(given) > count and ordered[count - 1] - ordered[count] < 1e-9:
        return  # ties
    least = ordered[count - 1] if len(given) > 1 else -math.inf
    expected = 0.0
    for number, ((new, old, weight), own) in enumerate(zip(given, covariances(given), strict=True)):
        penalty = 0.5 * abs(weight) if own >= least - 1e-12 else 0.0
        expected += penalty * abs(new - old) - weight * math.exp(new - old)
        sign = float(np.sign(new - old))
        assert gradient[number] == pytest.approx(penalty * sign - weight * math.exp(new - old))
    assert value == pytest.approx(expected)
    assert not ratios.clipped.any()


@settings(max_examples=50, deadline=None)
@given(given=token_lists, unit=st.sampled_from([0.25, 4.0, 64.0]))
def test_the_unit_of_the_reward_changes_no_choice_of_tokens(given: list[Token], unit: float) -> None:
    scaled = [(new, old, unit * weight) for new, old, weight in given]
    for kind in (OftenDropped, OftenPenalized):
        own, other = (computed(kind(OptimizerConfig()), tokens)[1] for tokens in (given, scaled))
        assert other == pytest.approx([unit * value for value in own])


def test_groups_with_one_weight_have_no_covariance() -> None:
    given = [(-1.0, -1.0, 0.5), (-2.0, -2.0, 0.5)]
    assert computed(OftenDropped(OptimizerConfig()), given)[1] == [-0.5, -0.5]


@pytest.mark.parametrize("name", ["clip_cov", "kl_cov", "dppo", "dppo_kl"])
def test_a_second_optimizer_step_moves_the_ratios(tiny_policy: Path, name: str) -> None:
    batch = build_batch(some_groups(20, 5), 10)
    both, first = (tiny_learner(tiny_policy, loss=name, importance="none") for _ in range(2))
    alone, stats = first.update(Batch(0, batch.mini_batches[:1])), both.update(batch)
    assert alone.clipping is not None
    assert stats.clipping is not None
    if name.endswith("cov"):  # relative to the policy before the batch
        assert (alone.clipping.ratio_mean, alone.clipping.ratio_max) == (1.0, 1.0)
    assert stats.clipping.ratio_max > alone.clipping.ratio_max
    assert stats.optimizer_steps == 2
