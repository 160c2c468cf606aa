"""Statistics against closed formulas and examples by hand, and the coverage of bootstrap intervals."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest

from marl_ray.core.statistics import (
    Z_95,
    bootstrap_estimates,
    holm,
    pass_at_k,
    share_interval,
    sign_flip,
    student_interval,
    wilson_interval,
)


def test_pass_at_k_is_the_closed_formula() -> None:
    for n in range(1, 13):
        for c, k in itertools.product(range(n + 1), range(1, n + 1)):
            exact = 1 - Fraction(math.comb(n - c, k), math.comb(n, k))
            assert pass_at_k(n, c, k) == pytest.approx(float(exact), rel=1e-14, abs=0)


def test_pass_at_k_is_precise_where_binomials_overflow() -> None:
    assert pass_at_k(10**6, 1, 1) == pytest.approx(1e-6, rel=1e-14)
    exact = 1 - Fraction(math.comb(9_000, 500), math.comb(10_000, 500))
    assert pass_at_k(10_000, 1_000, 500) == pytest.approx(float(exact), rel=1e-12)
    with pytest.raises(OverflowError):
        math.comb(10_000, 500) / 1.0


@pytest.mark.parametrize(("n", "c", "k"), [(5, 2, 6), (5, 6, 1), (5, -1, 1), (5, 2, 0), (0, 0, 1)])
def test_invalid_arguments_of_pass_at_k_are_rejected(n: int, c: int, k: int) -> None:
    with pytest.raises(ValueError, match="does not exist"):
        pass_at_k(n, c, k)


@pytest.mark.parametrize(("p", "k"), [(0.1, 1), (0.1, 5), (0.5, 3), (0.02, 10)])
def test_pass_at_k_is_unbiased(p: float, k: int) -> None:
    n, rounds = 12, 40_000
    passed = np.random.default_rng(1).binomial(n, p, size=rounds)
    found = np.array([pass_at_k(n, c, k) for c in range(n + 1)])[passed]
    truth = 1 - (1 - p) ** k
    error = found.std() / math.sqrt(rounds)
    assert abs(found.mean() - truth) < 4 * error
    plug_in = 1 - (1 - passed / n) ** k
    assert k == 1 or abs(plug_in.mean() - truth) > 4 * error  # the plug-in estimate is biased


@pytest.mark.parametrize("tasks", [40, 164])
def test_intervals_have_their_nominal_coverage(tasks: int) -> None:
    # Tasks of unequal difficulty with 5 samples each: pass@1, and its difference between two models.
    rng, rounds = np.random.default_rng(2), 600
    covered = np.zeros(2)
    for seed in range(rounds):
        difficulty = rng.beta(0.5, 1.0, size=tasks)  # mean 1/3
        one, other = rng.binomial(5, difficulty) / 5, rng.binomial(5, 0.9 * difficulty) / 5
        found = bootstrap_estimates(np.stack([one, one - other], axis=1), seed, resamples=500)
        for column, truth in enumerate((1 / 3, 1 / 3 * 0.1)):
            estimate = found[column]
            assert estimate is not None
            covered[column] += estimate.low <= truth <= estimate.high
    # The standard error of the coverage is 0.009 (600 rounds). Bootstrap intervals are slightly short for few tasks.
    assert covered.min() / rounds > 0.92
    assert covered.max() / rounds < 0.975


def test_differences_between_models_are_paired_by_task() -> None:
    """Improve every task slightly: the models' intervals overlap, but the interval of the difference excludes 0."""
    rng = np.random.default_rng(3)
    one = rng.uniform(0, 4, size=50)
    other = one + rng.uniform(0.05, 0.15, size=50)
    first, second, difference = bootstrap_estimates(np.stack([one, other, other - one], axis=1), 0)
    assert first is not None
    assert second is not None
    assert difference is not None
    assert second.low < first.high
    assert not first.low <= 0
    assert difference.excludes_zero
    assert 0.05 < difference.low < difference.high < 0.15


def test_missing_values_are_left_out() -> None:
    values = np.array([[1.0, np.nan, np.nan], [2.0, 4.0, np.nan], [6.0, 6.0, np.nan], [3.0, np.nan, np.nan]])
    first, second, third = bootstrap_estimates(values, 0)
    assert first is not None
    assert second is not None
    assert (first.mean, first.tasks, second.mean, second.tasks, third) == (3.0, 4, 5.0, 2, None)
    assert 4.0 <= second.low < second.high <= 6.0
    (alone,) = bootstrap_estimates(np.array([[2.0]]), 0)
    assert alone is not None
    assert alone.to_dict() == {"mean": 2.0, "low": None, "high": None, "tasks": 1}


def test_intervals_depend_on_the_seed_and_not_on_other_columns() -> None:
    values = np.random.default_rng(4).normal(size=(30, 3))
    alone, together = bootstrap_estimates(values[:, :1], 7), bootstrap_estimates(values, 7)
    assert together[0] is not None
    assert alone[0] is not None
    assert together[0].to_dict() == pytest.approx(alone[0].to_dict())
    assert bootstrap_estimates(values, 8) != together


def test_the_sign_flip_test_is_exact() -> None:
    assert sign_flip([1.0, 2.0, 3.0]) == 2 / 8
    assert sign_flip([1.0] * 8) == 2 / 256
    assert sign_flip([1.0, -1.0]) == 1.0
    assert sign_flip([3.0, 3.0, -1.0]) == 4 / 8  # sums of 5 or more: +++ and ++-, and their opposites


def test_holm_corrects_for_the_number_of_comparisons() -> None:
    assert holm([0.01, 0.5, 0.04]) == pytest.approx([0.03, 0.5, 0.08])
    assert holm([0.5, 0.6]) == [1.0, 1.0]


def test_intervals_are_students() -> None:
    mean, half = student_interval([1.0, 2.0, 3.0])
    assert (mean, half) == (2.0, pytest.approx(4.303 / 3**0.5, rel=1e-3))
    assert student_interval([5.0]) == (5.0, None)
    assert student_interval([1.0] * 5) == (1.0, 0.0)


def test_wilsons_interval_solves_its_equation() -> None:
    # A bound q is where the share is z standard errors of q away: |p - q| = z sqrt(q (1 - q) / n).
    for share, count in ((0.3, 10), (0.5, 4), (0.9, 200)):
        for bound in wilson_interval(share, count):
            assert abs(share - bound) == pytest.approx(Z_95 * math.sqrt(bound * (1 - bound) / count))
    low, high = wilson_interval(0.0, 10)
    assert (low, high) == (0.0, pytest.approx(Z_95**2 / (10 + Z_95**2)))


def test_the_interval_of_shares_stays_within_0_and_1_and_is_students_between() -> None:
    assert share_interval([0.3]) is None
    assert share_interval([1.0, 1.0]) == (1.0, 1.0)
    for shares in ([0.0, 0.0, 1.0], [0.02, 0.9, 0.08], [0.0, 1.0], [0.99, 1.0, 0.97]):
        low, high = share_interval(shares) or (-1.0, -1.0)
        assert 0 <= low < sum(shares) / len(shares) < high <= 1
    mean, half = student_interval([0.5, 0.51, 0.49, 0.5])
    assert half is not None
    assert share_interval([0.5, 0.51, 0.49, 0.5]) == pytest.approx((mean - half, mean + half), abs=1e-4)
