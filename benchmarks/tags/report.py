"""The table and the figure of the runs on tags, from the lines of their results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.learning.report import share_cell
from benchmarks.learning.study import JOINT, Study
from benchmarks.markdown import markdown
from benchmarks.tags.arms import TAGS
from marl_ray.core.statistics import student_interval
from marl_ray.results.returns_plot import centred_mean

WORDS = {
    "partners": ("partners", "#1b6ca8"),
    "twice": ("one agent asked twice", "#d1495b"),
    "shared": ("shared words", "#7f7f7f"),
}
POSITIONS = {"position_1": ("earlier reader, or the only one", "#2e8b57"), "position_2": ("later reader", "#c77c11")}
SHARES = ("position_1", "position_2", "copied")
"""Columns between 0 and 1."""
WINDOW = 5
"""Number of steps in the centred mean of a curve."""
Line = Mapping[str, Any]


def by_position(line: Line) -> Line:
    """Return the results of a run with its agents in the order of their last positions in the text, because every pair
    decides anew which agent reads the beginning."""
    last = line["evaluations"][-1]
    if "position_2" not in last or last["position_1"] <= last["position_2"]:
        return line
    swap = {"position_1": "position_2", "position_2": "position_1", "twice_1": "twice_2", "twice_2": "twice_1"}
    swapped = {
        name: [{swap.get(key, key): value for key, value in one.items()} for one in line[name]]
        for name in ("evaluations", "curve")
    }
    return {**line, **swapped}


def table(lines: Sequence[Line], study: Study = TAGS) -> str:
    """Return a Markdown table with the untrained model and one row per arm, on held-out texts after the last step that
    all runs reached. Intervals are over seeds; `difference` has the interval over texts if there is one seed."""
    lines = list(map(by_position, lines))
    head = ["", "seeds", "steps", "tokens per answer", *study.columns.values()]
    rows = [head]
    joint = [line for line in lines if line["arm"] == JOINT]
    common = max(set.intersection(*({one["step"] for one in line["evaluations"]} for line in lines)), default=0)
    if joint:
        firsts = [line["evaluations"][0] for line in joint]
        rows.append(["before training", _seeds(joint), "0", "", *_cells(firsts, study)])
    for name, arm in study.arms.items():
        own = [line for line in lines if line["arm"] == name]
        if own:
            lasts = [one for line in own for one in line["evaluations"] if one["step"] == common]
            tokens, _ = student_interval([line["answer_tokens"] for line in own])
            rows.append([arm.title, _seeds(own), str(common), f"{tokens:.1f}", *_cells(lasts, study)])
    return markdown(rows)


def _seeds(lines: Sequence[Line]) -> str:
    return ", ".join(str(line["seed"]) for line in lines)


def _cells(evaluations: Sequence[Mapping[str, float]], study: Study) -> list[str]:
    cells = []
    for column in study.columns:
        values = [one[column] for one in evaluations if column in one]
        if not values:
            cells.append("")
            continue
        if column in SHARES:
            cells.append(share_cell(values))
            continue
        mean, half = student_interval(values)
        if half is None and f"{column}_half" in evaluations[0]:
            half = evaluations[0][f"{column}_half"]
        sign = "+" if column == "gain" else ""
        cells.append(f"{mean:{sign}.2f}" + ("" if half is None else f" ± {half:.2f}"))
    return cells


def draw(lines: Sequence[Line], path: Path) -> None:
    """Draw two panels per arm with results: words, and positions in the text. Lines are centred means over WINDOW
    training steps, with the range over seeds; marks are held-out texts. Arms with fewer seeds than the pair are left
    out."""
    lines = list(map(by_position, lines))
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.ticker import MaxNLocator

    by_arm = {name: [line for line in lines if line["arm"] == name] for name in TAGS.arms}
    shown = [name for name, own in by_arm.items() if own and len(own) >= len(by_arm[JOINT])]
    if not shown:
        return
    figure, grid = plt.subplots(
        2, len(shown), figsize=(1.2 + 3.4 * len(shown), 6.4), sharey="row", layout="constrained", squeeze=False
    )
    for column, name in enumerate(shown):
        seeds = _seeds(by_arm[name])
        grid[0][column].set_title(f"{TAGS.arms[name].title}\n(seeds {seeds})" if "," in seeds else _titled(name, seeds))
        for row, series in enumerate((WORDS, POSITIONS)):
            axis = grid[row][column]
            for key, (label, colour) in series.items():
                _draw(axis, by_arm[name], key, label, colour)
            axis.xaxis.set_major_locator(MaxNLocator(integer=True))
            axis.grid(alpha=0.25)
            axis.spines[["top", "right"]].set_visible(False)
        grid[0][column].axhline(6, color="black", linewidth=0.8, linestyle=":")
        grid[1][column].set_xlabel("training step")
    grid[0][0].set_ylim(0, 6.2)
    grid[1][0].set_ylim(0, 1.15)
    grid[0][0].set_ylabel("words, of six")
    grid[1][0].set_ylabel("position in the text (0 start, 1 end)")
    for axes in grid:
        full = axes[0] if shown[0] == JOINT else axes[-1]
        full.legend(frameon=False, loc="upper left", fontsize=9)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _titled(name: str, seed: str) -> str:
    return f"{TAGS.arms[name].title}\n(seed {seed})"


def _draw(axis: Any, lines: Sequence[Line], key: str, label: str, colour: str) -> None:
    """Draw one number of an arm, if the arm has it."""
    found = [[(one["step"], one[key]) for one in line["curve"] if key in one] for line in lines]
    length = min(map(len, found))
    if not length:
        return
    steps = [step for step, _ in found[0][:length]]
    means = np.array([centred_mean([value for _, value in one[:length]], WINDOW) for one in found])
    axis.fill_between(steps, means.min(axis=0), means.max(axis=0), color=colour, alpha=0.15, linewidth=0)
    axis.plot(steps, means.mean(axis=0), color=colour, linewidth=2, label=label)
    for line in lines:
        marks = [(one["step"], one[key]) for one in line["evaluations"] if key in one]
        axis.plot(*zip(*marks, strict=True), "o", color=colour, markersize=5)
