"""Estimates from samples of tasks: pass@k, and what tasks drawn anew would have given. Pure functions.

Tasks are the unit that is drawn: an interval says how far the estimate would move on other tasks of the same kind. As
each resampled task brings the samples that were drawn on it, their chance is in the interval too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

RESAMPLES = 10_000
LEVEL = 0.95
AT_A_TIME = 500
"""Resamples in memory, each with a count a task."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over `tasks` tasks with its interval, which one task alone has not (NaN)."""

    mean: float
    low: float
    high: float
    tasks: int

    def to_dict(self) -> dict[str, Any]:
        """Plain data; a bound that is not there is null."""
        bounds = {"low": self.low, "high": self.high}
        known = {name: None if math.isnan(bound) else bound for name, bound in bounds.items()}
        return {"mean": self.mean, **known, "tasks": self.tasks}

    @property
    def excludes_zero(self) -> bool:
        """Of a difference: whether it has one sign all over the interval."""
        return self.low > 0 or self.high < 0


def pass_at_k(samples: int, passed: int, k: int) -> float:
    """The probability that one of `k` samples passes, without bias, from `samples` of which `passed` did.

    1 - C(n - c, k) / C(n, k) (Chen et al. 2021, arXiv:2107.03374), as 1 - prod of 1 - k / i for i from n - c + 1 to n:
    no binomial can overflow, and a small probability keeps its digits. Raises ValueError unless 1 <= k <= samples and
    0 <= passed <= samples.
    """
    if not (1 <= k <= samples and 0 <= passed <= samples):
        raise ValueError(f"pass@{k} of {samples} samples with {passed} passed does not exist")
    if samples - passed < k:
        return 1.0
    return -math.expm1(math.fsum(math.log1p(-k / i) for i in range(samples - passed + 1, samples + 1)))


def estimates(
    values: npt.NDArray[np.float64], seed: int, resamples: int = RESAMPLES, level: float = LEVEL
) -> list[Estimate | None]:
    """The mean of each column of `values` [tasks, metrics], where NaN is a task without a value, and its percentile
    bootstrap interval (Efron and Tibshirani 1993, ch. 13). None for a column without any value.

    All columns are resampled together, so that a column of differences between two models is a paired comparison.
    """
    there = ~np.isnan(values)
    sizes = there.sum(axis=0)
    known = np.where(there, values, 0.0)
    rng, tasks = np.random.default_rng(seed), len(values)
    means = []
    for start in range(0, resamples, AT_A_TIME):
        counts = rng.multinomial(tasks, np.full(tasks, 1 / tasks), size=min(AT_A_TIME, resamples - start))
        with np.errstate(invalid="ignore"):  # none of the tasks with a value was drawn
            means.append((counts @ known) / (counts @ there))
    drawn = np.concatenate(means)
    found: list[Estimate | None] = []
    for column, size in enumerate(sizes):
        if not size:
            found.append(None)
            continue
        low, high = math.nan, math.nan
        if size > 1:
            low, high = np.nanquantile(drawn[:, column], [(1 - level) / 2, (1 + level) / 2])
        found.append(Estimate(float(known[:, column].sum() / size), float(low), float(high), int(size)))
    return found
