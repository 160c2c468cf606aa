"""Figure of a comparison: learning curves, and differences with intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

from marl_ray.core.statistics import MethodComparison
from marl_ray.results.returns_plot import metric_points

COLOURS = ("#4477aa", "#ee6677", "#228833", "#aa3377", "#ccbb44", "#66ccee")
"""Colours that readers with colour blindness can distinguish (Paul Tol's "bright" scheme)."""
STYLE: Any = {
    "font.size": 8,
    "axes.labelsize": 8,
    "axes.titlesize": 8,
    "legend.fontsize": 7,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "pdf.fonttype": 42,  # text stays text
    "svg.fonttype": "none",
    "svg.hashsalt": "marl_ray",  # equal files for equal data
}
MAX_POINTS = 20
"""Maximum number of points of a curve."""
MIN_EVALUATIONS = 3
UNDATED: Mapping[str, Any] = {".pdf": {"CreationDate": None}, ".svg": {"Date": None}, ".png": None}
"""Metadata by suffix: equal data give equal files."""
Curve = Sequence[tuple[float, float]]


def reward_curves(runs: Sequence[Sequence[Mapping[str, Any]]]) -> tuple[str, list[Curve]]:
    """Return the label and a curve per run from its rows: points (joint samples, reward) of the last turn.

    They are of the evaluations or of the training steps, as `metric_curves` says.
    """
    held_out, curves = metric_curves(runs, list(map(_last_reward, runs)))
    return f"{'held-out' if held_out else 'training'} reward, last turn", curves


def metric_curves(runs: Sequence[Sequence[Mapping[str, Any]]], names: Sequence[str]) -> tuple[bool, list[Curve]]:
    """Return a curve per run of its metric in `names`, and whether the curves are of the evaluations.

    They are if every run has at least three, so that all curves of a figure show the same quantity.
    """
    training: list[Curve] = []
    held_out: list[Curve] = []
    for rows, name in zip(runs, names, strict=True):
        training.append(metric_points(rows, name))
        held_out.append(metric_points(rows, f"eval/{name}"))
    if min(map(len, held_out), default=0) < MIN_EVALUATIONS:
        return False, training
    return True, held_out


def _last_reward(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the name of the reward of the last turn."""
    last = 1
    for row in rows:
        for key in row:
            if key.startswith("turn_"):
                last = max(last, int(key.split("_")[1].split("/")[0]))
    return f"turn_{last}/reward_mean"


def thin(points: Curve, limit: int) -> Curve:
    """Return at most `limit` points, each the mean of neighbours."""
    size = math.ceil(len(points) / limit)
    if size <= 1:
        return points
    means = []
    for start in range(0, len(points), size):
        xs, ys = zip(*points[start : start + size], strict=True)
        means.append((sum(xs) / len(xs), sum(ys) / len(ys)))
    return means


def draw_figure(
    comparison: MethodComparison, curves: Mapping[str, Sequence[Curve]], ylabel: str, paths: Sequence[Path]
) -> None:
    """Write the figure to `paths` (PDF, SVG, PNG by suffix). `curves` has one curve per seed of each method."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    metrics: dict[str, None] = {}
    """Names in order of first appearance."""
    for estimates in comparison.differences.values():
        metrics |= dict.fromkeys(estimates)
    with_curves = any(map(any, curves.values()))
    colours = dict(zip(comparison.methods, cycle(COLOURS), strict=False))
    with plt.rc_context(STYLE):
        height = max(2.2, 0.6 + 0.32 * len(metrics) * max(1, len(comparison.differences)))
        panels = 1 + with_curves
        figure, axes = plt.subplots(1, panels, figsize=(3.4 * panels, height), layout="constrained", squeeze=False)
        if with_curves:
            _draw_curves(axes[0, 0], curves, colours, ylabel)
        _draw_differences(axes[0, -1], comparison, list(metrics), colours)
        for path in paths:
            figure.savefig(path, dpi=200, metadata=UNDATED[path.suffix])
        plt.close(figure)


def _draw_curves(axis: Any, curves: Mapping[str, Sequence[Curve]], colours: Mapping[str, str], ylabel: str) -> None:
    for name, of_method in curves.items():
        # Means of equal parts: single steps would hide the trend.
        shown = [thin(curve, MAX_POINTS) for curve in of_method if curve]
        if not shown:
            continue
        xs = []
        means = []
        lows = []
        highs = []
        for points in zip(*shown, strict=False):  # runs may have different lengths
            xs.append(sum(x for x, _ in points) / len(points))
            ys = [y for _, y in points]
            means.append(sum(ys) / len(ys))
            lows.append(min(ys))
            highs.append(max(ys))
        axis.plot(xs, means, color=colours[name], linewidth=1.4, label=name)
        if len(shown) > 1:
            axis.fill_between(xs, lows, highs, color=colours[name], alpha=0.2, linewidth=0)
    axis.set_xlabel("joint samples")
    axis.set_ylabel(ylabel)
    axis.grid(alpha=0.25, linewidth=0.5)
    axis.legend(frameon=False, loc="best")


def _draw_differences(
    axis: Any, comparison: MethodComparison, metrics: Sequence[str], colours: Mapping[str, str]
) -> None:
    first = next(iter(comparison.methods))
    number = len(comparison.differences)
    for index, (name, block) in enumerate(comparison.differences.items()):
        # Methods of one metric lie side by side, within half a row.
        offset = 0.0 if number == 1 else 0.5 * (index / (number - 1) - 0.5)
        for row, metric in enumerate(metrics):
            estimate = block.get(metric)
            if estimate is None:
                continue
            y = row + offset
            if not math.isnan(estimate.low):
                axis.plot([estimate.low, estimate.high], [y, y], color=colours[name], linewidth=1.4)
            label = None if row else name  # one entry of the legend per method
            axis.plot([estimate.mean], [y], "o", color=colours[name], markersize=4, label=label)
    axis.axvline(0.0, color="#555555", linewidth=0.8, linestyle="--")
    axis.set_yticks(range(len(metrics)), metrics)
    axis.set_ylim(len(metrics) - 0.4, -0.6)
    axis.set_xlabel(f"difference from {first} (95 % interval)")
    axis.grid(axis="x", alpha=0.25, linewidth=0.5)
    if number:
        axis.legend(frameon=False, loc="best")
