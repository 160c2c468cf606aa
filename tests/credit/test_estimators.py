"""Advantage estimators against their definitions."""

from __future__ import annotations

import math
import re
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_ray.core.errors import UserError
from marl_ray.credit import CRITICS, ESTIMATORS
from marl_ray.credit.estimators.base import Estimator, SiblingValues, load_estimator, whitened
from marl_ray.credit.requirements import CRITIC_REQUIREMENTS, Requirements
from tests.credit.trees import advantages_of

OF_SIBLINGS = ["magrpo", "grpo", "marloo", "maremax", "mareinforce"]
RETURNS = torch.tensor([[1.0, 2.0, 4.0, 1.0], [0.5, 0.5, 0.5, 0.5]], dtype=torch.float64)


def group_advantages(returns: torch.Tensor, name: str) -> torch.Tensor:
    return advantages_of(name, returns)


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


def test_every_estimator_is_a_class_with_a_formula() -> None:
    for name in ESTIMATORS.entries:
        estimator = ESTIMATORS.get(name)
        assert issubclass(estimator, Estimator)
        assert re.match(r"A = ", estimator.__doc__), name


def test_every_critic_declares_its_requirements() -> None:
    assert set(CRITIC_REQUIREMENTS) == set(CRITICS.entries)


def test_a_requirement_has_a_known_name() -> None:
    with pytest.raises(TypeError, match="there is no requirement sibling: use siblings, "):
        Requirements(sibling=True)
    with pytest.raises(AttributeError):
        _ = Requirements().sibling


def test_requirements_are_read_without_torch() -> None:
    code = (
        "import sys\n"
        "from marl_ray.credit import ESTIMATORS\n"
        "from marl_ray.credit.requirements import estimator_requirements\n"
        "assert all(estimator_requirements(name).values for name in ESTIMATORS.entries)\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


ROUNDED = [0.1 + 0.2, 0.3, 0.6 - 0.3, math.fsum([0.1] * 3)]
"""Returns that are equal except for the last bits."""


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("magrpo", None),
        ("marloo", None),
        ("maremax", None),
        ("reinforce_pp", None),
        ("maxrl", None),
        ("pass_at_k", None),
        ("opo", [3.0, 1.0, 2.0, 5.0]),
        ("remax", [0.3] * 4),
        ("difference", [0.3] * 4),
        ("centred_difference", [0.1] * 4),
        ("shapley", [0.1] * 4),
    ],
)
def test_rounding_is_no_signal(name: str, values: list[float] | None) -> None:
    assert len(set(ROUNDED)) > 1
    given = None if values is None else torch.tensor(values, dtype=torch.float64)
    assert advantages_of(name, torch.tensor(ROUNDED, dtype=torch.float64), given).tolist() == [0.0] * 4
    assert whitened(torch.tensor(ROUNDED, dtype=torch.float64)).tolist() == [0.0] * 4


def test_a_small_difference_is_a_signal() -> None:
    result = group_advantages(torch.tensor([1000.0, 1000.0 + 1e-5], dtype=torch.float64), "magrpo")
    assert result[1] > 0 > result[0]


@pytest.mark.parametrize("name", ["magrpo", "difference", "centred_difference"])
def test_a_return_that_is_not_finite_is_not_hidden(name: str) -> None:
    returns = torch.tensor([float("inf"), 0.0], dtype=torch.float64)
    values = None if name == "magrpo" else torch.zeros(2, dtype=torch.float64)
    assert not advantages_of(name, returns, values).isfinite().all()


def test_an_estimator_receives_the_input_that_it_requires_and_no_other() -> None:
    values = SiblingValues(RETURNS, lengths=torch.ones_like(RETURNS))
    with pytest.raises(AssertionError):
        load_estimator("remax").advantages(values)
    torch.testing.assert_close(load_estimator("opo").advantages(values), group_advantages(RETURNS, "magrpo"))
