"""Losses dppo and dppo_kl against their definitions, written per token."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from marl_ray.config import OptimizerConfig
from marl_ray.learning import LOSSES
from marl_ray.learning.losses.policy_loss import PolicyLoss
from tests.learning.loss_tokens import Token, assert_a_second_step_moves_the_ratios, computed, token_lists


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


@pytest.mark.parametrize("name", ["dppo", "dppo_kl"])
def test_a_second_optimizer_step_moves_the_ratios(tiny_policy: Path, name: str) -> None:
    assert_a_second_step_moves_the_ratios(tiny_policy, name)
