"""The table and the curves of benchmarks/learning.py, from the lines of its results. Pure, but for the drawing."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

T_975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""Student's t, 97.5 %, for 1 to 9 degrees of freedom; above that the normal's 1.960 is taken to be near enough."""
COLUMNS = {
    "reward": "reward",
    "passed": "passed",
    "passed_eval": "of known families",
    "passed_unseen": "of unseen",
    "first_passed": "in turn 1",
    "needs_aux": "needs aux",
    "agree": "agree",
    "both_first": "both first",
}
WINDOW = 8
"""Steps that a point of a curve is the mean of."""
COLOURS = ("#1b6ca8", "#d1495b", "#2e8b57", "#c77c11", "#8e6bbf")

Line = Mapping[str, Any]
Titles = Mapping[str, Mapping[str, str]]


def interval(values: Sequence[float]) -> tuple[float, float | None]:
    """The mean, and half the width of its 95 % interval by Student's t, over seeds; None for one value."""
    mean, n = statistics.fmean(values), len(values)
    if n < 2:
        return mean, None
    t = T_975[n - 2] if n - 2 < len(T_975) else 1.960
    return mean, t * statistics.stdev(values) / math.sqrt(n)


def table(lines: Sequence[Line], titles: Titles, reference: str) -> str:
    """Markdown: the untrained base, then a row an arm; the last column is paired by seed against `reference`."""
    head = ["", "seeds", *COLUMNS.values(), "passed, less joint"]
    rows = [head, ["---"] * len(head)]
    before = [line["before"] for line in lines if line["arm"] == reference]
    if before:
        rows.append(["before training", str(len(before)), *_cells(before), ""])
    theirs = {line["seed"]: line["after"]["passed"] for line in lines if line["arm"] == reference}
    for arm, title in (pair for of in titles.values() for pair in of.items()):
        own = {line["seed"]: line["after"] for line in lines if line["arm"] == arm}
        if own:
            pairs = [after["passed"] - theirs[seed] for seed, after in own.items() if seed in theirs]
            difference = "" if arm == reference or not pairs else _cell(pairs, signed=True)
            rows.append([title, str(len(own)), *_cells(list(own.values())), difference])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _cells(found: Sequence[Mapping[str, float]]) -> Iterator[str]:
    for column in COLUMNS:
        values = [numbers[column] for numbers in found if column in numbers]
        yield _cell(values) if values else ""


def _cell(values: Sequence[float], signed: bool = False) -> str:
    mean, half = interval(values)
    return f"{mean:{'+' if signed else ''}.2f}" + ("" if half is None else f" ± {half:.2f}")


def draw(lines: Sequence[Line], titles: Titles, reference: str, path: Path) -> None:
    """A panel a group of arms that has lines: the share of training programs that pass all tests in the last turn, over
    sampled tokens; the mean over seeds, and all seeds between the edges. The reference is in every panel."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    curves = {arm: _curves(lines, arm) for of in titles.values() for arm in of}
    groups = {
        group: {arm: title for arm, title in of.items() if curves[arm] and arm != reference}
        for group, of in titles.items()
    }
    groups = {group: of for group, of in groups.items() if of} or {next(iter(titles)): {}}
    if not curves[reference]:
        return
    figure, grid = plt.subplots(
        1, len(groups), figsize=(1.0 + 4.2 * len(groups), 4.2), sharey=True, layout="constrained", squeeze=False
    )
    name = next(of[reference] for of in titles.values() if reference in of)
    for axis, (group, of) in zip(grid[0], groups.items(), strict=True):
        _draw(axis, curves[reference], "black", name)
        for (arm, title), colour in zip(of.items(), COLOURS, strict=False):
            _draw(axis, curves[arm], colour, title)
        axis.set_title(group, loc="left", fontsize=11)
        axis.set_xlabel("sampled tokens, thousands")
        axis.set_ylim(bottom=0)
        axis.yaxis.set_major_formatter(matplotlib.ticker.PercentFormatter(1.0))
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
        axis.legend(frameon=False, loc="upper left", fontsize=9)
    grid[0][0].set_ylabel("programs that pass all tests, last turn")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _curves(lines: Sequence[Line], arm: str) -> list[np.ndarray[Any, Any]]:
    """One [points, 2] a seed: tokens, and the share that passed, a trailing mean of WINDOW steps."""
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
