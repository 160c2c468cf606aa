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
    """Markdown: the untrained base, then a row an arm; the last column is paired by seed against the joint arm."""
    head = ["", "seeds", *study.columns.values(), f"{study.columns[study.compared]}, less joint"]
    rows = [head, ["---"] * len(head)]
    before = [line["before"] for line in lines if line["arm"] == JOINT]
    if before:
        rows.append(["before training", str(len(before)), *_cells(before, study), ""])
    theirs = {line["seed"]: line["after"][study.compared] for line in lines if line["arm"] == JOINT}
    for name, arm in study.arms.items():
        own = {line["seed"]: line["after"] for line in lines if line["arm"] == name}
        if own:
            pairs = [after[study.compared] - theirs[seed] for seed, after in own.items() if seed in theirs]
            difference = "" if name == JOINT or not pairs else _cell(pairs, signed=True)
            rows.append([arm.title, str(len(own)), *_cells(list(own.values()), study), difference])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _cells(found: Sequence[Mapping[str, float]], study: Study) -> Iterator[str]:
    for column in study.columns:
        values = [numbers[column] for numbers in found if column in numbers]
        yield _cell(values) if values else ""


def _cell(values: Sequence[float], signed: bool = False) -> str:
    mean, half = interval(values)
    return f"{mean:{'+' if signed else ''}.2f}" + ("" if half is None else f" ± {half:.2f}")


def draw(lines: Sequence[Line], study: Study, path: Path) -> None:
    """A panel a group of arms that has lines: what the study draws of training, over sampled tokens; the mean over
    seeds, and all seeds between the edges. Marks are held-out tasks, a seed each. The joint arm is in every panel."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    curves = {arm: _curves(lines, arm) for arm in study.arms}
    if not curves[JOINT]:
        return
    found = {group: [arm for arm in of if curves[arm] and arm != JOINT] for group, of in study.groups.items()}
    groups = {group: of for group, of in found.items() if of} or {next(iter(found)): []}
    figure, grid = plt.subplots(
        1, len(groups), figsize=(1.0 + 4.2 * len(groups), 5.2), sharey=True, layout="constrained", squeeze=False
    )
    number, label = study.drawn
    for axis, (group, of) in zip(grid[0], groups.items(), strict=True):
        for arm, colour in zip([JOINT, *of], ["black", *COLOURS[: len(of)]], strict=True):
            _draw(axis, curves[arm], colour, study.arms[arm].title)
            if study.marked:
                _mark(axis, [line["evaluations"] for line in lines if line["arm"] == arm], colour)
        axis.set_title(group, loc="left", fontsize=11)
        axis.set_xlabel("sampled tokens, thousands")
        if number.endswith("passed"):
            axis.yaxis.set_major_formatter(matplotlib.ticker.PercentFormatter(1.0))
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
        axis.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.15), fontsize=9)  # below, on no curve
    grid[0][0].set_ylim(bottom=0)  # of all panels, as their curves need it
    grid[0][0].set_ylabel(label)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _curves(lines: Sequence[Line], arm: str) -> list[np.ndarray[Any, Any]]:
    """One [points, 2] a seed: tokens, and what is drawn, a trailing mean of WINDOW steps."""
    found = []
    for line in lines:
        if line["arm"] == arm:
            curve = np.array(line["curve"], dtype=float)
            means = [curve[max(0, end - WINDOW) : end, 2].mean() for end in range(1, len(curve) + 1)]
            found.append(np.stack([curve[:, 0] / 1000, means], axis=1))
    return found


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
