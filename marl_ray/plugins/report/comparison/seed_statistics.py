"""Means and paired differences of methods, with bootstrap intervals over tasks and seeds.

A method is a set of runs that differ only in their seed. Tasks and seeds are resampled independently of each other
(the two-way bootstrap of Owen 2007, "The pigeonhole bootstrap"), so intervals include the variation of both. All
methods share the resampled tasks, and methods with the same seeds also share the resampled seeds: their differences are
paired.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from marl_ray.evaluation.statistics import LEVEL, RESAMPLES, Estimate

CHUNK = 200  # resamples in memory at a time
Values = npt.NDArray[np.float64]


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

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""

        def plain(blocks: Mapping[str, Mapping[str, Estimate]]) -> dict[str, Any]:
            return {name: {metric: e.to_dict() for metric, e in block.items()} for name, block in blocks.items()}

        seeds = {name: list(seeds) for name, seeds in self.seeds.items()}
        return {"seeds": seeds, "methods": plain(self.methods), "differences": plain(self.differences)}


def compare_methods(
    methods: Sequence[ComparedMethod], metrics: Sequence[str], seed: int, resamples: int = RESAMPLES
) -> MethodComparison:
    """Return the estimates of all methods, which have the same tasks in the same order."""
    rng = np.random.default_rng(seed)
    draws: dict[str, list[Values]] = {method.name: [] for method in methods}
    tasks = methods[0].values.shape[1]
    for start in range(0, resamples, CHUNK):
        size = min(CHUNK, resamples - start)
        task_counts = rng.multinomial(tasks, np.full(tasks, 1 / tasks), size=size)
        seed_counts: dict[tuple[int, ...], Any] = {}
        for method in methods:
            number = len(method.seeds)
            if method.seeds not in seed_counts:
                seed_counts[method.seeds] = rng.multinomial(number, np.full(number, 1 / number), size=size)
            draws[method.name].append(_weighted_means(method.values, seed_counts[method.seeds], task_counts))
    resampled = {name: np.concatenate(chunks) for name, chunks in draws.items()}
    means = {m.name: _weighted_means(m.values, np.ones((1, len(m.seeds))), np.ones((1, tasks)))[0] for m in methods}
    first = methods[0].name
    blocks = {m.name: _estimates(means[m.name], resampled[m.name], metrics, m.values) for m in methods}
    differences = {
        m.name: _estimates(
            means[m.name] - means[first], resampled[m.name] - resampled[first], metrics, m.values, methods[0].values
        )
        for m in methods[1:]
    }
    return MethodComparison(blocks, differences, {method.name: method.seeds for method in methods})


def _weighted_means(values: Values, seed_counts: Any, task_counts: Any) -> Values:
    """Return the mean of each metric [resamples, metrics] under the counts of seeds and tasks."""
    seeds, tasks, metrics = values.shape
    present = ~np.isnan(values)
    flat = (seed_counts @ np.where(present, values, 0.0).reshape(seeds, -1)).reshape(-1, tasks, metrics)
    weights = (seed_counts @ present.reshape(seeds, -1).astype(float)).reshape(-1, tasks, metrics)
    with np.errstate(invalid="ignore"):  # a resample without any value
        return np.einsum("rt,rtm->rm", task_counts, flat) / np.einsum("rt,rtm->rm", task_counts, weights)


def _estimates(means: Values, draws: Values, metrics: Sequence[str], *values: Values) -> dict[str, Estimate]:
    """Return the estimates by metric, without metrics that have no value. A single task and seed give no interval."""
    found: dict[str, Estimate] = {}
    for column, metric in enumerate(metrics):
        if math.isnan(means[column]):
            continue
        present = [~np.isnan(one[:, :, column]) for one in values]
        tasks = int(np.logical_and.reduce([p.any(axis=0) for p in present]).sum())
        low = high = math.nan
        if tasks > 1 or any(p.shape[0] > 1 for p in present):
            low, high = np.nanquantile(draws[:, column], [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
        found[metric] = Estimate(float(means[column]), float(low), float(high), tasks)
    return found
