"""Statistics of results: each formula once, with its source, for evaluations, reports and benchmarks.

| question | function |
|---|---|
| interval of a mean of many values | `half_width` (normal) |
| interval of a mean over few seeds | `student_interval` |
| interval of a share | `wilson_interval` |
| interval of means over tasks | `bootstrap_estimates` |
| interval of means over tasks and seeds | `compare_methods` |
| do two arms differ, paired by seed | `sign_flip`, then `holm` for several comparisons |
| does one of k answers pass | `pass_at_k` |
| do two rankings agree | `rank_correlation` |
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, stdev
from typing import Any

import numpy as np
import numpy.typing as npt

LEVEL = 0.95
"""Coverage of intervals."""
Z_95 = 1.96
"""Half the width of a 95 % interval of a normal distribution, in standard errors."""
T_975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""97.5 % quantiles of Student's t for 1 to 9 degrees of freedom. Above, Z_95 is used."""
RESAMPLES = 10_000
TASK_CHUNK = 500
"""Resamples in memory at a time, each with one count per task. The chunk is part of the random stream."""
SEED_CHUNK = 200
"""As TASK_CHUNK, for resamples of tasks and seeds, which hold [resamples, tasks, metrics]."""
Values = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over `tasks` tasks with its 95 % interval (`low`, `high`: NaN for a single task)."""

    mean: float
    low: float
    high: float
    tasks: int

    def to_dict(self) -> dict[str, Any]:
        """Return plain data; missing bounds are None."""
        plain = asdict(self)
        if math.isnan(self.low):
            plain["low"] = None
            plain["high"] = None
        return plain

    @property
    def excludes_zero(self) -> bool:
        """Whether the interval excludes zero; meaningful for differences."""
        return self.low > 0 or self.high < 0


@dataclass(frozen=True, slots=True)
class ComparedMethod:
    """Runs that differ only in their seed: `values` [seeds, tasks, metrics] in the order of `seeds`, NaN for missing
    values."""

    name: str
    seeds: tuple[int, ...]
    values: Values


@dataclass(frozen=True, slots=True)
class MethodComparison:
    """Estimates by metric of each method, and of each later method minus the first."""

    methods: Mapping[str, Mapping[str, Estimate]]
    differences: Mapping[str, Mapping[str, Estimate]]
    seeds: Mapping[str, tuple[int, ...]]


def describe_estimate(estimate: Estimate, signed: bool = False) -> str:
    """Return the mean, and the interval if there is one: `0.500 [0.250, 0.750]`."""
    sign = "+" if signed else ""
    text = f"{estimate.mean:{sign}.3f}"
    if math.isnan(estimate.low):
        return text
    return f"{text} [{estimate.low:{sign}.3f}, {estimate.high:{sign}.3f}]"


def estimates_to_dict(estimates: Mapping[str, Estimate]) -> dict[str, Any]:
    """Return plain data of estimates by metric."""
    return {name: estimate.to_dict() for name, estimate in estimates.items()}


def half_width(deviation: float, count: int) -> float:
    """Return half the width of the normal 95 % interval of a mean of `count` independent values.

    >>> half_width(1.0, 4)
    0.98
    """
    return Z_95 * deviation / math.sqrt(count)


def student_interval(values: Sequence[float]) -> tuple[float, float | None]:
    """Return the mean and half the width of its 95 % interval (Student 1908); None as the width for a single value."""
    count = len(values)
    mean = fmean(values)
    if count < 2:
        return mean, None
    t = Z_95
    degrees = count - 1
    if degrees <= len(T_975):
        t = T_975[degrees - 1]
    return mean, t * stdev(values) / math.sqrt(count)


def wilson_interval(share: float, count: int) -> tuple[float, float]:
    """Return the 95 % interval of a share of `count` (Wilson 1927, the score interval), which stays within 0 and 1.

    (p + z² / 2n ± z sqrt(p (1 - p) / n + z² / 4n²)) / (1 + z² / n)
    """
    return _score_interval(share, Z_95**2 / count)


def share_interval(shares: Sequence[float]) -> tuple[float, float] | None:
    """Return the 95 % interval of the mean of shares, one per seed, within 0 and 1; None for a single value.

    The score interval with Student's quantile and the number of samples n whose binomial variance p (1 - p) / n is the
    variance of the mean (Korn and Graubard 1998 for clusters of a survey). Shares that differ little have Student's
    interval.

        >>> low, high = share_interval([0.0, 0.0, 1.0])  # Student's interval is -1.10 to 1.77
        >>> round(low, 2), round(high, 2)
        (0.01, 0.96)
    """
    mean, half = student_interval(shares)
    if half is None:
        return None
    if half == 0.0:
        return mean, mean
    return _score_interval(mean, half**2 / (mean * (1 - mean)))


def _score_interval(share: float, z: float) -> tuple[float, float]:
    """Return the bounds of a share; `z` is the squared quantile per sample."""
    middle = (share + z / 2) / (1 + z)
    half = math.sqrt(share * (1 - share) * z + z * z / 4) / (1 + z)
    # Rounding may carry a bound of the shares 0 and 1 outside.
    return max(0.0, middle - half), min(1.0, middle + half)


def sign_flip(differences: Sequence[float]) -> float:
    """Return the two-sided p-value of the exact sign-flip test of a mean of 0 (Fisher 1935).

    Under the null hypothesis the sign of each difference is random, so all 2^n signs are equally likely. The smallest
    p-value is 2 / 2^n.

        >>> sign_flip([1.0, 2.0, 3.0])
        0.25
    """
    observed = abs(sum(differences))
    signed = [value for value in differences if value]  # the sign of a zero changes nothing
    extreme = 0
    for signs in itertools.product((1, -1), repeat=len(signed)):
        flipped = sum(map(operator.mul, signs, signed))
        # A sum in another order may be smaller by a rounding error.
        extreme += abs(flipped) >= observed - 1e-12
    return extreme / 2 ** len(signed)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values adjusted for the number of comparisons (Holm 1979): the smallest is multiplied by n, the next by
    n - 1, and no adjusted value is below one before it.

        >>> holm([0.01, 0.5, 0.04])
        [0.03, 0.5, 0.08]
    """
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    by_size = sorted(range(len(p_values)), key=p_values.__getitem__)
    for rank, index in enumerate(by_size):
        corrected = (len(p_values) - rank) * p_values[index]
        largest = max(largest, min(1.0, corrected))
        adjusted[index] = largest
    return adjusted


def pass_at_k(samples: int, passed: int, k: int) -> float:
    """Return the unbiased estimate of the probability that at least one of `k` samples passes.

    1 - C(n - c, k) / C(n, k) (Chen et al. 2021, arXiv:2107.03374) with n = samples and c = passed, computed as 1 minus
    the product of 1 - k / i for i from n - c + 1 to n, which neither overflows nor loses digits of small probabilities.
    Raises ValueError unless 1 <= k <= samples and 0 <= passed <= samples.

        >>> round(pass_at_k(4, 2, 1), 6)
        0.5
    """
    if not (1 <= k <= samples and 0 <= passed <= samples):
        raise ValueError(f"pass@{k} of {samples} samples with {passed} passed does not exist")
    failed = samples - passed
    if failed < k:
        return 1.0
    logarithms = (math.log1p(-k / i) for i in range(failed + 1, samples + 1))
    return -math.expm1(math.fsum(logarithms))


def rank_correlation(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Return the rank correlation (Spearman 1904), with mean ranks for equal values; None if one side is constant.

    >>> round(rank_correlation([(1.0, 10.0), (2.0, 20.0), (3.0, 15.0)]), 3)
    0.5
    """
    if len(pairs) < 2:
        return None
    first, second = map(_ranks, np.array(pairs, dtype=np.float64).T)
    if not first.std() or not second.std():
        return None
    return float(np.corrcoef(first, second)[0, 1])


def _ranks(values: Values) -> Values:
    # Values that differ by rounding errors of sums in another order are equal.
    rounded = np.round(values, 9)
    _, places, counts = np.unique(rounded, return_inverse=True, return_counts=True)
    mean_ranks = counts.cumsum() - (counts - 1) / 2
    return np.asarray(mean_ranks[places])


def bootstrap_estimates(values: Values, seed: int, resamples: int = RESAMPLES) -> list[Estimate | None]:
    """Return the mean of each column of `values` [tasks, metrics] with its percentile bootstrap interval (Efron and
    Tibshirani 1993, ch. 13). NaN is a missing value; a column without values gives None.

    Tasks are resampled with their episodes, so intervals include the variation of tasks and of sampling. All columns
    are resampled together, so a column of differences between two models is a paired comparison.
    """
    present = ~np.isnan(values)
    sizes = present.sum(axis=0)
    filled = np.where(present, values, 0.0)
    rng = np.random.default_rng(seed)
    tasks = len(values)
    chunks = []
    for start in range(0, resamples, TASK_CHUNK):
        size = min(TASK_CHUNK, resamples - start)
        counts = _resample(rng, tasks, size)
        with np.errstate(invalid="ignore"):  # a resample without any value
            chunks.append((counts @ filled) / (counts @ present))
    draws = np.concatenate(chunks)
    estimates: list[Estimate | None] = []
    for column, size in enumerate(sizes):
        if not size:
            estimates.append(None)
            continue
        mean = filled[:, column].sum() / size
        low, high = _percentiles(draws[:, column], size > 1)
        estimates.append(Estimate(float(mean), low, high, int(size)))
    return estimates


def compare_methods(
    methods: Sequence[ComparedMethod], metrics: Sequence[str], seed: int, resamples: int = RESAMPLES
) -> MethodComparison:
    """Return the estimates of all methods, which have the same tasks in the same order.

    Tasks and seeds are resampled independently of each other (the two-way bootstrap of Owen 2007, "The pigeonhole
    bootstrap"), so intervals include the variation of both. All methods share the resampled tasks, and methods with the
    same seeds also share the resampled seeds: their differences are paired.
    """
    rng = np.random.default_rng(seed)
    tasks = methods[0].values.shape[1]
    chunks: list[list[Values]] = [[] for _ in methods]
    for start in range(0, resamples, SEED_CHUNK):
        size = min(SEED_CHUNK, resamples - start)
        task_counts = _resample(rng, tasks, size)
        seed_counts: dict[tuple[int, ...], Values] = {}
        for method, drawn in zip(methods, chunks, strict=True):
            if method.seeds not in seed_counts:
                seed_counts[method.seeds] = _resample(rng, len(method.seeds), size)
            drawn.append(_weighted_means(method.values, seed_counts[method.seeds], task_counts))
    draws = list(map(np.concatenate, chunks))
    means = []
    for method in methods:
        once = np.ones((1, len(method.seeds)))
        means.append(_weighted_means(method.values, once, np.ones((1, tasks)))[0])
    estimates = {}
    differences = {}
    for number, method in enumerate(methods):
        estimates[method.name] = _by_metric(metrics, means[number], draws[number], [method])
        if number:
            mean = means[number] - means[0]
            change = draws[number] - draws[0]
            differences[method.name] = _by_metric(metrics, mean, change, [method, methods[0]])
    return MethodComparison(estimates, differences, {method.name: method.seeds for method in methods})


def _weighted_means(values: Values, seed_counts: Values, task_counts: Values) -> Values:
    """Return the mean of each metric [resamples, metrics] under the counts of seeds and tasks."""
    seeds, tasks, metrics = values.shape
    present = ~np.isnan(values)
    filled = np.where(present, values, 0.0)
    sums = seed_counts @ filled.reshape(seeds, -1)
    weights = seed_counts @ present.reshape(seeds, -1).astype(float)
    shape = (-1, tasks, metrics)
    total = np.einsum("rt,rtm->rm", task_counts, sums.reshape(shape))
    weight = np.einsum("rt,rtm->rm", task_counts, weights.reshape(shape))
    with np.errstate(invalid="ignore"):  # a resample without any value
        return np.asarray(total / weight)


def _by_metric(
    metrics: Sequence[str], means: Values, draws: Values, methods: Sequence[ComparedMethod]
) -> dict[str, Estimate]:
    """Return the estimates of metrics that have a value. A single task and seed give no interval."""
    estimates: dict[str, Estimate] = {}
    for column, metric in enumerate(metrics):
        if math.isnan(means[column]):
            continue
        in_all = np.ones(methods[0].values.shape[1], dtype=bool)
        """Whether each task has a value in all methods."""
        several_seeds = False
        for method in methods:
            present = ~np.isnan(method.values[:, :, column])
            in_all &= present.any(axis=0)
            several_seeds |= len(method.seeds) > 1
        tasks = int(in_all.sum())
        low, high = _percentiles(draws[:, column], tasks > 1 or several_seeds)
        estimates[metric] = Estimate(float(means[column]), low, high, tasks)
    return estimates


def _resample(rng: np.random.Generator, count: int, size: int) -> Any:
    """Return how often each of `count` items is drawn in each of `size` resamples, [size, count]."""
    return rng.multinomial(count, np.full(count, 1 / count), size=size)


def _percentiles(draws: Values, varies: bool) -> tuple[float, float]:
    """Return the bounds of an interval of resampled means, NaN where nothing `varies` between resamples."""
    if not varies:
        return math.nan, math.nan
    outside = (1 - LEVEL) / 2
    low, high = np.nanquantile(draws, [outside, (1 + LEVEL) / 2])
    return float(low), float(high)
