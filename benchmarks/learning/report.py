"""The table and the curves of a study, from the lines of its results. Pure, but for the drawing."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.learning.studies import JOINT, Study

T_975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""Student's t, 97.5 %, for 1 to 9 degrees of freedom; above that the normal's 1.960 is taken to be near enough."""
WINDOW = 8
"""Steps that a point of a curve is the mean of."""
PANELS_A_ROW = 3
COLOURS = ("#1b6ca8", "#d1495b", "#2e8b57", "#c77c11", "#8e6bbf")

Line = Mapping[str, Any]


def interval(values: Sequence[float]) -> tuple[float, float | None]:
    """The mean, and half the width of its 95 % interval by Student's t, over seeds; None for one value."""
    mean, n = statistics.fmean(values), len(values)
    if n < 2:
        return mean, None
    t = T_975[n - 2] if n - 2 < len(T_975) else 1.960
    return mean, t * statistics.stdev(values) / math.sqrt(n)


def table(lines: Sequence[Line], study: Study) -> str:
    """Markdown: the untrained base, then a row an arm; the last columns are paired by seed against the joint arm."""
    less = [f"{study.columns[name]}, less joint" for name in study.compared]
    head = ["", "seeds", "tokens, thousands", *study.columns.values(), *less]
    rows = [head, ["---"] * len(head)]
    before = [line["before"] for line in lines if line["arm"] == JOINT]
    if before:
        rows.append(["before training", str(len(before)), "", *_cells(before, study), *("" for _ in less)])
    theirs = {line["seed"]: line["after"] for line in lines if line["arm"] == JOINT}
    for name, arm in study.arms.items():
        own = {line["seed"]: line for line in lines if line["arm"] == name}
        if own:
            tokens = statistics.fmean(line["curve"][-1][0] for line in own.values()) / 1000
            shared = sorted(own.keys() & theirs.keys() if name != JOINT else ())
            differences = [[own[seed]["after"][of] - theirs[seed][of] for seed in shared] for of in study.compared]
            cells = _cells([line["after"] for line in own.values()], study)
            paired = (_cell(these, signed=True) if these else "" for these in differences)
            rows.append([arm.title, str(len(own)), f"{tokens:.0f}", *cells, *paired])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _cells(found: Sequence[Mapping[str, float]], study: Study) -> Iterator[str]:
    for column in study.columns:
        values = [numbers[column] for numbers in found if column in numbers]
        yield _cell(values) if values else ""


def _cell(values: Sequence[float], signed: bool = False) -> str:
    mean, half = interval(values)
    return f"{mean:{'+' if signed else ''}.2f}" + ("" if half is None else f" ± {half:.2f}")


def draw(lines: Sequence[Line], study: Study, path: Path) -> None:
    """A panel a group of arms that has lines: what the study draws of training, over sampled tokens; the mean over the
    seeds that all arms of the panel have, and all of these between the edges. Marks are held-out tasks, a seed each.
    The joint arm is in every panel."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    by_arm = {arm: {line["seed"]: line for line in lines if line["arm"] == arm} for arm in study.arms}
    if not by_arm[JOINT]:
        return
    found = {group: [arm for arm in of if by_arm[arm] and arm != JOINT] for group, of in study.groups.items()}
    groups = {group: of for group, of in found.items() if of} or {next(iter(found)): []}
    wide = min(len(groups), PANELS_A_ROW)
    high = math.ceil(len(groups) / wide)
    figure, grid = plt.subplots(
        high, wide, figsize=(1.0 + 4.2 * wide, 5.4 * high), sharey=True, layout="constrained", squeeze=False
    )
    number, label = study.drawn
    for axis, (group, of) in zip(grid.flat, groups.items(), strict=False):
        seeds = sorted(set.intersection(*(set(by_arm[arm]) for arm in [JOINT, *of])))
        for arm, colour in zip([JOINT, *of], ["black", *COLOURS[: len(of)]], strict=True):
            drawn = [by_arm[arm][seed] for seed in seeds]
            _draw(axis, [_curve(line) for line in drawn], colour, study.arms[arm].title)
            if study.marked:
                _mark(axis, [line["evaluations"] for line in drawn], colour)
        if study.marked:
            axis.errorbar([], [], [], fmt="o", color="grey", capsize=3, markersize=5, label="held-out tasks")
        axis.set_title(f"{group} (seeds {', '.join(map(str, seeds))})", loc="left", fontsize=11)
        axis.set_xlabel("sampled tokens, thousands")
        if number.endswith("passed"):
            axis.yaxis.set_major_formatter(matplotlib.ticker.PercentFormatter(1.0))
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
        axis.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.13), fontsize=9)  # below, on no curve
    for axis in grid.flat[len(groups) :]:
        axis.set_visible(False)
    for row in grid:
        row[0].set_ylabel(label)
    grid[0][0].set_ylim(bottom=0)  # of all panels, as their curves need it
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _curve(line: Line) -> np.ndarray[Any, Any]:
    """[points, 2]: tokens in thousands, and what is drawn, a trailing mean of WINDOW steps."""
    curve = np.array(line["curve"], dtype=float)
    means = [curve[max(0, end - WINDOW) : end, 2].mean() for end in range(1, len(curve) + 1)]
    return np.stack([curve[:, 0] / 1000, means], axis=1)


def _draw(axis: Any, curves: Sequence[np.ndarray[Any, Any]], colour: str, label: str) -> None:
    """On a grid of tokens that all seeds reached."""
    start, stop = max(c[0, 0] for c in curves), min(c[-1, 0] for c in curves)
    grid = np.linspace(start, stop, 200)
    values = np.stack([np.interp(grid, c[:, 0], c[:, 1]) for c in curves])
    axis.fill_between(grid, values.min(axis=0), values.max(axis=0), color=colour, alpha=0.15, linewidth=0)
    axis.plot(grid, values.mean(axis=0), color=colour, linewidth=2, label=label)


def _mark(axis: Any, evaluations: Sequence[Sequence[Sequence[float]]], colour: str) -> None:
    """Held-out rewards with their intervals over tasks; `evaluations` of each seed."""
    for points in evaluations:
        _, tokens, rewards, halves, _ = zip(*points, strict=True)
        axis.errorbar(np.array(tokens) / 1000, rewards, halves, fmt="o", color=colour, capsize=3, markersize=5)
