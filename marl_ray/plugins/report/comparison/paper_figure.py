"""Figure of a comparison: learning curves, and differences with intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from marl_ray.core.statistics import MethodComparison

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
Curve = Sequence[tuple[float, float]]


def evaluation_curve(rows: Sequence[Mapping[str, Any]]) -> tuple[str, Curve]:
    """Return the label and the points (joint samples, reward) of the last turn: of the evaluations if there are at
    least three, else of the training steps."""
    turns = [int(k.split("_")[1].split("/")[0]) for row in rows for k in row if k.startswith("turn_")]
    name = f"turn_{max(turns, default=1)}/reward_mean"
    held_out = [(r["env_steps"], r[f"eval/{name}"]) for r in rows if r.get(f"eval/{name}") is not None]
    if len(held_out) >= 3:
        return "held-out reward, last turn", held_out
    return "training reward, last turn", [(r["env_steps"], r[name]) for r in rows if r.get(name) is not None]


def smoothed(curve: Curve) -> Curve:
    """Return the curve as means of at most 20 equal parts, so that single steps do not hide the trend."""
    width = max(1, math.ceil(len(curve) / 20))
    parts = [curve[start : start + width] for start in range(0, len(curve), width)]
    return [(sum(x for x, _ in p) / len(p), sum(y for _, y in p) / len(p)) for p in parts]


def draw_figure(
    comparison: MethodComparison, curves: Mapping[str, Sequence[Curve]], ylabel: str, paths: Sequence[Path]
) -> None:
    """Write the figure to `paths` (PDF, SVG, PNG by suffix). `curves` has one curve per seed of each method."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    metrics = list(dict.fromkeys(metric for block in comparison.differences.values() for metric in block))
    with_curves = any(curve for of_method in curves.values() for curve in of_method)
    colours = {name: COLOURS[index % len(COLOURS)] for index, name in enumerate(comparison.methods)}
    with plt.rc_context(STYLE):
        height = max(2.2, 0.6 + 0.32 * len(metrics) * max(1, len(comparison.differences)))
        panels = 1 + with_curves
        figure, axes = plt.subplots(1, panels, figsize=(3.4 * panels, height), layout="constrained", squeeze=False)
        if with_curves:
            _draw_curves(axes[0, 0], curves, colours, ylabel)
        _draw_differences(axes[0, -1], comparison, metrics, colours)
        for path in paths:
            dated = {"CreationDate": None} if path.suffix == ".pdf" else {"Date": None}
            figure.savefig(path, dpi=200, metadata=None if path.suffix == ".png" else dated)
        plt.close(figure)


def _draw_curves(axis: Any, curves: Mapping[str, Sequence[Curve]], colours: Mapping[str, str], ylabel: str) -> None:
    for name, of_method in curves.items():
        shown = [smoothed(curve) for curve in of_method if curve]
        if not shown:
            continue
        length = min(map(len, shown))
        xs = [sum(curve[i][0] for curve in shown) / len(shown) for i in range(length)]
        ys = [[curve[i][1] for curve in shown] for i in range(length)]
        axis.plot(xs, [sum(y) / len(y) for y in ys], color=colours[name], linewidth=1.4, label=name)
        if len(shown) > 1:
            axis.fill_between(xs, list(map(min, ys)), list(map(max, ys)), color=colours[name], alpha=0.2, linewidth=0)
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
        offset = 0.0 if number == 1 else 0.5 * (index / (number - 1) - 0.5)
        for row, metric in enumerate(metrics):
            estimate = block.get(metric)
            if estimate is None:
                continue
            y = row + offset
            if not math.isnan(estimate.low):
                axis.plot([estimate.low, estimate.high], [y, y], color=colours[name], linewidth=1.4)
            axis.plot([estimate.mean], [y], "o", color=colours[name], markersize=4, label=name if not row else None)
    axis.axvline(0.0, color="#555555", linewidth=0.8, linestyle="--")
    axis.set_yticks(range(len(metrics)), metrics)
    axis.set_ylim(len(metrics) - 0.4, -0.6)
    axis.set_xlabel(f"difference from {first} (95 % interval)")
    axis.grid(axis="x", alpha=0.25, linewidth=0.5)
    if number:
        axis.legend(frameon=False, loc="best")
