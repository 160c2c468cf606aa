"""Advantage estimators against their definitions."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_ray.core.errors import UserError
from marl_ray.credit import CRITICS, ESTIMATORS, estimators
from marl_ray.credit.estimators import whitened
from marl_ray.credit.requirements import CRITIC_REQUIREMENTS, ESTIMATOR_REQUIREMENTS

OF_SIBLINGS = ["magrpo", "grpo", "marloo", "maremax", "mareinforce"]
RETURNS = torch.tensor([[1.0, 2.0, 4.0, 1.0], [0.5, 0.5, 0.5, 0.5]], dtype=torch.float64)


def group_advantages(returns: torch.Tensor, name: str) -> torch.Tensor:
    return ESTIMATORS.get(name)(returns)


def test_magrpo_subtracts_the_mean() -> None:
    expected = torch.tensor([[-1.0, 0.0, 2.0, -1.0], [0.0, 0.0, 0.0, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(group_advantages(RETURNS, "magrpo"), expected)
    torch.testing.assert_close(group_advantages(RETURNS, "grpo"), expected)


def test_marloo_subtracts_the_mean_of_the_other_siblings() -> None:
    got = group_advantages(RETURNS, "marloo")
    for row, advantages in zip(RETURNS.tolist(), got.tolist(), strict=True):
        for g, value in enumerate(row):
            others = [r for h, r in enumerate(row) if h != g]
            assert advantages[g] == pytest.approx(value - sum(others) / len(others))


def test_maremax_subtracts_the_maximum() -> None:
    got = group_advantages(RETURNS, "maremax")
    torch.testing.assert_close(got[0], torch.tensor([-3.0, -2.0, 0.0, -3.0], dtype=torch.float64))


def test_mareinforce_returns_a_copy_of_the_returns() -> None:
    returns = RETURNS.clone()
    got = group_advantages(returns, "mareinforce")
    torch.testing.assert_close(got, RETURNS)
    got.zero_()
    torch.testing.assert_close(returns, RETURNS)


def test_whitened_estimators_coincide() -> None:
    white = [whitened(group_advantages(RETURNS, name)) for name in OF_SIBLINGS]
    for other in white[1:]:
        torch.testing.assert_close(other, white[0], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(white[0][0].std(correction=0).item(), 1.0, rtol=1e-5, atol=1e-5)
    assert white[0][1].abs().max() == 0


def test_equal_returns_give_exact_zeros_despite_rounding() -> None:
    equal = torch.tensor([0.4, 0.4, 0.4], dtype=torch.float64)
    assert (equal - equal.mean()).any(), "rounding makes a difference in this case"
    for name in ("magrpo", "marloo", "maremax"):
        assert not group_advantages(equal, name).any()
    assert not whitened(equal).any()
    torch.testing.assert_close(group_advantages(equal, "mareinforce"), equal)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.floats(-4, 4, allow_subnormal=False), min_size=2, max_size=6),
    st.floats(-10, 10, allow_subnormal=False),
    st.floats(0.1, 10),
)
def test_advantages_under_shifted_and_scaled_returns(values: list[float], shift: float, scale: float) -> None:
    # Advantages with a baseline ignore a shift, and scale with returns; whitened advantages ignore a scale too.
    returns = torch.tensor(values, dtype=torch.float64)
    moved = returns * scale + shift
    for name in OF_SIBLINGS:
        own = group_advantages(returns, name)
        seen = shift if name == "mareinforce" else 0.0
        torch.testing.assert_close(group_advantages(moved, name), own * scale + seen, rtol=1e-9, atol=1e-9)
    if returns.std(correction=0) > 0.1:
        torch.testing.assert_close(whitened(moved), whitened(returns), rtol=1e-3, atol=1e-3)


def test_siblings_are_the_last_dimension() -> None:
    tree = torch.randn(3, 5, 4, dtype=torch.float64)
    for name in OF_SIBLINGS:
        got = group_advantages(tree, name)
        assert got.shape == tree.shape
        torch.testing.assert_close(got[1, 2], group_advantages(tree[1, 2], name))


def test_an_unknown_estimator_and_a_group_of_one_are_rejected() -> None:
    with pytest.raises(UserError, match="unknown estimator 'ppo'"):
        ESTIMATORS.get("ppo")
    with pytest.raises(ValueError, match="at least 2"):
        group_advantages(torch.tensor([1.0]), "marloo")


def test_every_estimator_and_critic_declares_its_requirements() -> None:
    assert set(ESTIMATOR_REQUIREMENTS) == set(ESTIMATORS.entries)
    assert set(CRITIC_REQUIREMENTS) == set(CRITICS.entries)


ROUNDED = [0.1 + 0.2, 0.3, 0.6 - 0.3, math.fsum([0.1] * 3)]
"""Returns that are equal except for the last bits."""


@pytest.mark.parametrize(
    ("estimator", "baselines"),
    [
        (estimators.magrpo, None),
        (estimators.marloo, None),
        (estimators.maremax, None),
        (estimators.whitened, None),
        (estimators.reinforce_pp, None),
        (estimators.maxrl, None),
        (estimators.pass_at_k, None),
        (estimators.opo, [3.0, 1.0, 2.0, 5.0]),
        (estimators.remax, [0.3] * 4),
        (estimators.difference, [0.3] * 4),
        (estimators.centred_difference, [0.1] * 4),
    ],
)
def test_rounding_is_no_signal(estimator: estimators.Estimator, baselines: list[float] | None) -> None:
    assert len(set(ROUNDED)) > 1
    arguments = [ROUNDED] if baselines is None else [ROUNDED, baselines]
    result = estimator(*(torch.tensor(values, dtype=torch.float64) for values in arguments))
    assert result.tolist() == [0.0] * 4


def test_a_small_difference_is_a_signal() -> None:
    result = estimators.magrpo(torch.tensor([1000.0, 1000.0 + 1e-5], dtype=torch.float64))
    assert result[1] > 0 > result[0]


@pytest.mark.parametrize("estimator", [estimators.magrpo, estimators.difference, estimators.centred_difference])
def test_a_return_that_is_not_finite_is_not_hidden(estimator: estimators.Estimator) -> None:
    returns = torch.tensor([float("inf"), 0.0], dtype=torch.float64)
    arguments = [returns] if estimator is estimators.magrpo else [returns, torch.zeros(2, dtype=torch.float64)]
    assert not estimator(*arguments).isfinite().all()
