"""Statistics of evaluations: pass@k, and means over tasks with bootstrap intervals.

Tasks are resampled, not episodes: an interval tells how far the estimate would move on other tasks of the same kind.
Each resampled task keeps its episodes, so the interval includes the sampling noise of the episodes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

RESAMPLES = 10_000
LEVEL = 0.95
RESAMPLES_PER_CHUNK = 500
"""Resamples in memory at a time, each with one count per task."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over `tasks` tasks with its 95 % interval (`low`, `high`: NaN for a single task)."""

    mean: float
    low: float
    high: float
    tasks: int

    def to_dict(self) -> dict[str, Any]:
        """Return plain data; missing bounds are None."""
        bounds = {"low": self.low, "high": self.high}
        finite = {name: None if math.isnan(bound) else bound for name, bound in bounds.items()}
        return {"mean": self.mean, **finite, "tasks": self.tasks}

    @property
    def excludes_zero(self) -> bool:
        """Whether the interval excludes zero; meaningful for differences."""
        return self.low > 0 or self.high < 0


def pass_at_k(samples: int, passed: int, k: int) -> float:
    """Return the unbiased estimate of the probability that at least one of `k` samples passes.

    1 - C(n - c, k) / C(n, k) (Chen et al. 2021, arXiv:2107.03374) with n = samples and c = passed, computed as 1 minus
    the product of 1 - k / i for i from n - c + 1 to n, which neither overflows nor loses digits of small probabilities.
    Raises ValueError unless 1 <= k <= samples and 0 <= passed <= samples.

    Example:
        >>> round(pass_at_k(4, 2, 1), 6)
        0.5
    """
    if not (1 <= k <= samples and 0 <= passed <= samples):
        raise ValueError(f"pass@{k} of {samples} samples with {passed} passed does not exist")
    if samples - passed < k:
        return 1.0
    return -math.expm1(math.fsum(math.log1p(-k / i) for i in range(samples - passed + 1, samples + 1)))


def bootstrap_estimates(
    values: npt.NDArray[np.float64], seed: int, resamples: int = RESAMPLES, level: float = LEVEL
) -> list[Estimate | None]:
    """Return the mean of each column of `values` [tasks, metrics] with its percentile bootstrap interval (Efron and
    Tibshirani 1993, ch. 13). NaN is a missing value; a column without values gives None.

    All columns are resampled together, so a column of differences between two models is a paired comparison.
    """
    present = ~np.isnan(values)
    sizes = present.sum(axis=0)
    filled = np.where(present, values, 0.0)
    rng, tasks = np.random.default_rng(seed), len(values)
    means = []
    for start in range(0, resamples, RESAMPLES_PER_CHUNK):
        counts = rng.multinomial(tasks, np.full(tasks, 1 / tasks), size=min(RESAMPLES_PER_CHUNK, resamples - start))
        with np.errstate(invalid="ignore"):  # a resample without any value
            means.append((counts @ filled) / (counts @ present))
    resampled = np.concatenate(means)
    estimates: list[Estimate | None] = []
    for column, size in enumerate(sizes):
        if not size:
            estimates.append(None)
            continue
        low, high = math.nan, math.nan
        if size > 1:
            low, high = np.nanquantile(resampled[:, column], [(1 - level) / 2, (1 + level) / 2])
        estimates.append(Estimate(float(filled[:, column].sum() / size), float(low), float(high), int(size)))
    return estimates
