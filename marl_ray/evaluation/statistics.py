"""Statistics of evaluations: pass@k, and means over tasks with bootstrap intervals.

The bootstrap resamples tasks with their episodes, so intervals include the variation of tasks and of sampling.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

RESAMPLES = 10_000
LEVEL = 0.95
RESAMPLES_PER_CHUNK = 500  # resamples in memory at a time, each with one count per task


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over `tasks` tasks with its 95 % interval (`low`, `high`: NaN for a single task)."""

    mean: float
    low: float
    high: float
    tasks: int

    def to_dict(self) -> dict[str, Any]:
        """Return plain data; missing bounds are None."""
        low, high = (None if math.isnan(bound) else bound for bound in (self.low, self.high))
        return {"mean": self.mean, "low": low, "high": high, "tasks": self.tasks}

    @property
    def excludes_zero(self) -> bool:
        """Whether the interval excludes zero; meaningful for differences."""
        return self.low > 0 or self.high < 0


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
    if samples - passed < k:
        return 1.0
    return -math.expm1(math.fsum(math.log1p(-k / i) for i in range(samples - passed + 1, samples + 1)))


def bootstrap_estimates(
    values: npt.NDArray[np.float64], seed: int, resamples: int = RESAMPLES
) -> list[Estimate | None]:
    """Return the mean of each column of `values` [tasks, metrics] with its percentile bootstrap interval (Efron and
    Tibshirani 1993, ch. 13). NaN is a missing value; a column without values gives None. All columns are resampled
    together, so a column of differences between two models is a paired comparison.
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
        low = high = math.nan
        if size > 1:
            low, high = np.nanquantile(resampled[:, column], [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
        mean = filled[:, column].sum() / max(size, 1)
        estimates.append(Estimate(float(mean), float(low), float(high), int(size)) if size else None)
    return estimates
