"""A summary as a table for people."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from marl_ray.evaluation.statistics import Estimate
from marl_ray.evaluation.task_metrics import EvaluationSummary

WIDTH = 25
MOST_COMPARED = 3
"""Models; the differences of more are in the file."""
SIDE_BY_SIDE = 5
"""Columns; further ones come below, each with the metrics' names again."""


def table(summary: EvaluationSummary) -> Iterator[str]:
    """A line a metric: each model's mean with its interval; of a few models the differences from the first, with a star
    where their interval excludes zero."""
    models = summary.models
    first = next(iter(models))
    few = len(models) <= MOST_COMPARED
    shown = [difference for difference in summary.differences if few and difference.reference == first]
    columns: dict[str, Mapping[str, Estimate]] = dict(models)
    columns |= {f"{difference.model} - {first}": difference.numbers for difference in shown}
    names = list(dict.fromkeys(name for numbers in models.values() for name in numbers))
    widest = max(map(len, names), default=0)
    labels = list(columns)
    for start in range(0, len(labels), SIDE_BY_SIDE):
        block = labels[start : start + SIDE_BY_SIDE]
        if start:
            yield ""
        yield f"{'':<{widest}}" + _row(block, block)
        for name in names:
            cells = (_cell(columns[label].get(name), label not in models) for label in block)
            yield f"{name:<{widest}}" + _row(cells, block)


def matrix(summary: EvaluationSummary, names: Sequence[str], metric: str = "return") -> Iterator[str]:
    """Models in two roles: rows are who plays the first role, columns who plays the second."""
    yield f"{metric}, by who plays agent 0 (rows) and agent 1 (columns)"
    widest = max(map(len, names))
    yield f"{'':<{widest}}" + _row(names, names)
    for row in names:
        cells = (_cell(summary.models[f"{row}+{column}"].get(metric), False) for column in names)
        yield f"{row:<{widest}}" + _row(cells, names)


def _row(cells: Iterable[str], labels: Iterable[str]) -> str:
    """Cells, each as wide as its column."""
    return "".join(f"  {cell:>{max(WIDTH, len(label))}}" for cell, label in zip(cells, labels, strict=True))


def _cell(estimate: Estimate | None, signed: bool) -> str:
    if estimate is None:
        return "-"
    sign = "+" if signed else ""
    text = f"{estimate.mean:{sign}.3f}"
    if not math.isnan(estimate.low):
        text += f" [{estimate.low:{sign}.3f}, {estimate.high:{sign}.3f}]"
    return text + ((" *" if estimate.excludes_zero else "  ") if signed else "")
