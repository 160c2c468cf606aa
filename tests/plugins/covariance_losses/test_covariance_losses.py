"""Losses clip_cov and kl_cov against their definitions, written per token."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_ray.config import OptimizerConfig, from_tree
from marl_ray.core.errors import UserError
from marl_ray.plugins.covariance_losses.clip_cov import DroppedCovariances
from marl_ray.plugins.covariance_losses.kl_cov import PenalizedCovariances
from tests.config.helpers import config_tree
from tests.learning.builders import save_tiny_policy
from tests.learning.loss_tokens import Token, assert_a_second_step_moves_the_ratios, computed, token_lists


@pytest.fixture(scope="module")
def tiny_policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny_policy")
    save_tiny_policy(folder)
    return folder


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


@pytest.mark.parametrize("name", ["clip_cov", "kl_cov"])
def test_a_second_optimizer_step_moves_the_ratios(tiny_policy: Path, name: str) -> None:
    # The ratio is relative to the policy before the batch.
    assert assert_a_second_step_moves_the_ratios(tiny_policy, name) == (1.0, 1.0)


def test_an_unknown_loss_is_an_error_that_lists_the_losses_of_the_plug_in() -> None:
    with pytest.raises(UserError, match=r"unknown loss 'surrogate': known: .*clip_cov, kl_cov \(or module:Attr"):
        from_tree(config_tree(magrpo={"loss": "surrogate"}), "magrpo")
