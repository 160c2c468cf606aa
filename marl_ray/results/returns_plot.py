"""The reward plot of a run."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, TypeGuard

COLOURS = ("#1b6ca8", "#d1495b", "#2e8b57", "#8e6bbf", "#c77c11")


def plot_run(rows: Sequence[dict[str, Any]], path: Path, title: str) -> None:
    """Write a PNG of the mean reward of each turn over joint samples.

    Steps are faint lines with a bold centred mean, evaluations are points. Environments that report `all_passed` get
    a second panel with the share of joint programs that pass all tests.
    """
    from matplotlib.figure import Figure  # not pyplot, whose backend belongs to the program, such as a notebook
    from matplotlib.ticker import PercentFormatter

    train = [row for row in rows if "turn_1/reward_mean" in row]
    turns = set()
    with_solved = False
    for row in rows:
        for key in row:
            with_solved |= key.endswith("/all_passed")
            if key.startswith("turn_"):
                turns.add(int(key.partition("/")[0].removeprefix("turn_")))
    panels = [("reward_mean", "mean reward", 2.0)]
    if with_solved:
        panels.append(("all_passed", "solved", 1.0))
    heights = [height for _, _, height in panels]
    figure = Figure(figsize=(8, 0.4 + 2 * sum(heights)), layout="constrained")
    axes = figure.subplots(len(panels), 1, sharex=True, height_ratios=heights, squeeze=False)[:, 0]
    top = axes[0]
    last = axes[-1]
    for turn in sorted(turns) or [1]:
        colour = COLOURS[(turn - 1) % len(COLOURS)]
        for axis, (metric, _, _) in zip(axes, panels, strict=True):
            label = f"turn {turn}" if axis is top else None
            points = metric_points(train, f"turn_{turn}/{metric}")
            if points:
                xs, ys = zip(*points, strict=True)
                axis.plot(xs, ys, color=colour, alpha=0.25, linewidth=1)
                axis.plot(xs, centred_mean(ys, smoothing_window(len(ys))), color=colour, linewidth=2, label=label)
            points = metric_points(rows, f"eval/turn_{turn}/{metric}")
            if points:
                label = label and f"{label}, held-out tasks"
                style = {"linewidth": 1, "markersize": 7, "markeredgecolor": "white", "zorder": 5}
                marks = "D--" if len(points) > 2 else "D"
                axis.plot(*zip(*points, strict=True), marks, color=colour, label=label, **style)
    top.set_title(title, loc="left", fontsize=12)
    if len(train) > 1:
        note = f"bold: centred mean over {smoothing_window(len(train))} steps"
        top.set_title(note, loc="right", fontsize=9, color="#666666")
    last.set_xlabel("environment steps (joint samples)")
    if with_solved:
        last.set_ylim(-0.03, 1.03)
        last.yaxis.set_major_formatter(PercentFormatter(1.0))
    for axis, (_, title_of_axis, _) in zip(axes, panels, strict=True):
        axis.set_ylabel(title_of_axis)
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    top.legend(frameon=False, loc="best", ncols=2)
    figure.savefig(path, dpi=130)


def metric_points(rows: Iterable[Mapping[str, Any]], key: str) -> list[tuple[float, float]]:
    """Return (joint samples, value) of the rows that have a finite value."""
    points = []
    for row in rows:
        value = row.get(key)
        if is_number(value):
            points.append((float(row.get("env_steps", 0)), float(value)))
    return points


def is_number(value: Any) -> TypeGuard[float]:
    """Return whether the value is a finite number."""
    return isinstance(value, int | float) and math.isfinite(value)


def smoothing_window(steps: int) -> int:
    """Return the width of the centred mean in a plot of `steps` steps."""
    return max(1, min(steps, max(3, steps // 10)))


def centred_mean(values: Sequence[float], width: int) -> list[float]:
    """Return the mean of each value and equally many neighbours on both sides, at most `width` values in all.

    A mean of predecessors only would lag behind: a run that rises later would seem better than it is.
    """
    sums = [0.0, *accumulate(values)]
    means = []
    for index in range(len(values)):
        beside = min(width // 2, index, len(values) - 1 - index)
        means.append((sums[index + beside + 1] - sums[index - beside]) / (2 * beside + 1))
    return means
