"""The table and the curves of a study, from the lines of its results."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.learning.study import JOINT, Study
from benchmarks.markdown import markdown
from marl_ray.core.statistics import share_interval, student_interval
from marl_ray.core.text import pluralize
from marl_ray.results.returns_plot import centred_mean

WINDOW = 8
"""Maximum number of steps in the centred mean of a curve."""
PANELS_PER_ROW = 3
NO_SHARES = ("reward", "first_reward", "tokens_1", "tokens_2", "told_apart")
"""Columns that are no shares."""
COLOURS = ("#1b6ca8", "#d1495b", "#2e8b57", "#c77c11", "#8e6bbf")

Line = Mapping[str, Any]


def table(lines: Sequence[Line], study: Study) -> str:
    """Return a Markdown table with the untrained models and one row per arm. The last columns are differences from the
    joint arm, paired by seed, and the fall of the reward (`peak_less_final`)."""
    learned_head = [] if study.learned is None else [f"seeds above {study.learned}"]
    differences_head = [f"{study.columns[name]}, less joint" for name in study.compared]
    last_head = [*learned_head, *differences_head, "peak less final"]
    head = ["", "seeds", "tokens, thousands", *study.columns.values(), *last_head]
    rows = [head]
    for title, first_arm in _first_arms(study).items():
        before = [line["before"] for line in lines if line["arm"] == first_arm]
        if before:
            rows.append([title, str(len(before)), "", *_cells(before, study), *("" for _ in last_head)])
    joint = {line["seed"]: line["after"] for line in lines if line["arm"] == JOINT}
    for name, arm in study.arms.items():
        own = {line["seed"]: line for line in lines if line["arm"] == name}
        if own:
            tokens = statistics.fmean(line["curve"][-1][0] for line in own.values()) / 1000
            shared = sorted(own.keys() & joint.keys() if name != JOINT else ())
            differences = [[own[seed]["after"][key] - joint[seed][key] for seed in shared] for key in study.compared]
            cells = _cells([line["after"] for line in own.values()], study)
            paired = (_cell(values, signed=True) if values else "" for values in differences)
            learned = []
            if study.learned is not None:
                passed = sum(line["after"]["reward"] > study.learned for line in own.values())
                low, high = exact_interval(passed, len(own))
                learned.append(f"{passed} [{low:.2f}, {high:.2f}]")
            falls = [peak_less_final(line) for line in own.values()]
            fall = f"{statistics.fmean(falls):.2f}, at most {max(falls):.2f}"
            rows.append([arm.title, str(len(own)), f"{tokens:.0f}", *cells, *learned, *paired, fall])
    return markdown(rows)


def _first_arms(study: Study) -> dict[str, str]:
    """Return the arms whose first evaluation is that of a base policy, by title of its row: the joint arm, and the
    first arm of every further `model.name`."""
    titles = {"before training": JOINT}
    seen = {study.arms[JOINT].overrides.get("model.name")}
    for name, arm in study.arms.items():
        model = arm.overrides.get("model.name")
        if model not in seen:
            seen.add(model)
            titles[f"before training, {arm.title}"] = name
    return titles


def exact_interval(successes: int, count: int) -> tuple[float, float]:
    """Return the 95 % interval of a share of `count` (Clopper and Pearson 1934), which has at least its coverage.

    >>> low, high = exact_interval(8, 8)
    >>> round(low, 3), high
    (0.631, 1.0)
    """
    return _exact_low(successes, count), 1.0 - _exact_low(count - successes, count)


def _exact_low(successes: int, count: int) -> float:
    """Return the share with which at least so many successes have a probability of 2.5 %."""
    if not successes:
        return 0.0
    low = 0.0
    high = 1.0
    for _ in range(50):  # bisection: the probability rises with the share
        share = (low + high) / 2
        terms = (math.comb(count, k) * share**k * (1 - share) ** (count - k) for k in range(successes, count + 1))
        if math.fsum(terms) < 0.025:
            low = share
        else:
            high = share
    return low


def peak_less_final(line: Line) -> float:
    """Return the largest reward less the last one: of held-out tasks if the run has evaluated between the first and the
    last step, else of training tasks, as means of WINDOW steps. A maximum of noisy values is too large, so a run that
    does not fall has a small positive value."""
    rewards = [evaluation[2] for evaluation in line.get("evaluations", ())]
    if len(rewards) < 3:
        steps = [step[1] for step in line["curve"]]
        starts = range(max(1, len(steps) - WINDOW + 1))
        rewards = [statistics.fmean(steps[start : start + WINDOW]) for start in starts]
    return float(max(rewards) - rewards[-1])


def _cells(found: Sequence[Mapping[str, float]], study: Study) -> Iterator[str]:
    for column in study.columns:
        values = [numbers[column] for numbers in found if column in numbers]
        if not values:
            yield ""
        elif column in NO_SHARES:
            yield _cell(values)
        else:
            yield share_cell(values)


def share_cell(shares: Sequence[float]) -> str:
    """Return the mean of shares and its interval, which is not symmetric near 0 and 1: `0.33 [0.01, 0.96]`."""
    text = f"{statistics.fmean(shares):.2f}"
    interval = share_interval(shares)
    if interval is None:
        return text
    low, high = interval
    return f"{text} [{low:.2f}, {high:.2f}]"


def _cell(values: Sequence[float], signed: bool = False) -> str:
    mean, half = student_interval(values)
    return f"{mean:{'+' if signed else ''}.2f}" + ("" if half is None else f" ± {half:.2f}")


def draw(lines: Sequence[Line], study: Study, path: Path) -> None:
    """Draw one panel per group of arms with results, with the joint arm in every panel.

    A curve is the study's metric over sampled tokens: its mean and range over all seeds of the arm, whose number the
    legend has. Marks are rewards on held-out tasks, one series per seed.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    by_arm = {arm: {line["seed"]: line for line in lines if line["arm"] == arm} for arm in study.arms}
    if not by_arm[JOINT]:
        return
    trained = {group: [arm for arm in arms if by_arm[arm] and arm != JOINT] for group, arms in study.groups.items()}
    groups = {group: arms for group, arms in trained.items() if arms} or {next(iter(trained)): []}
    high = math.ceil(len(groups) / PANELS_PER_ROW)
    wide = math.ceil(len(groups) / high)
    figure, grid = plt.subplots(
        high, wide, figsize=(1.0 + 4.2 * wide, 5.4 * high), sharey=True, layout="constrained", squeeze=False
    )
    number, quantity = study.drawn
    for axis, (group, arms) in zip(grid.flat, groups.items(), strict=False):
        colours = _colours(study.groups[group])
        for arm in [JOINT, *arms]:
            colour = colours[arm]
            drawn = list(by_arm[arm].values())
            label = f"{study.arms[arm].title} ({pluralize(len(drawn), 'seed')})"
            _draw(axis, [_curve(line) for line in drawn], colour, label)
            if study.marked:
                _mark(axis, [line["evaluations"] for line in drawn], colour)
        if study.marked:
            axis.errorbar([], [], [], fmt="o", color="grey", capsize=3, markersize=5, label="held-out tasks")
        axis.set_title(group, loc="left", fontsize=11)
        axis.set_xlabel("sampled tokens, thousands")
        if number.endswith("passed"):
            axis.yaxis.set_major_formatter(matplotlib.ticker.PercentFormatter(1.0, decimals=0))
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
        axis.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.13), fontsize=9)  # below the panel
    for axis in grid.flat[len(groups) :]:
        axis.set_visible(False)
    for row in grid:
        row[0].set_ylabel(f"{quantity}, training tasks")
    grid[0][0].set_ylim(bottom=0)  # shared by all panels
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _colours(arms: Iterable[str]) -> dict[str, str]:
    """Return the colour of each arm of a panel by its place, so that arms in the same place of two panels have the same
    one. The joint arm is black, and has no place if it is the first."""
    first, *others = arms
    places = others if first == JOINT else [first, *others]
    return dict(zip(places, COLOURS, strict=False)) | {JOINT: "black"}


def _curve(line: Line) -> np.ndarray[Any, Any]:
    """Return [points, 2]: tokens in thousands, and the centred mean of the metric over WINDOW steps."""
    curve = np.array(line["curve"], dtype=float)
    means = centred_mean(curve[:, 2].tolist(), WINDOW)
    return np.stack([curve[:, 0] / 1000, np.array(means)], axis=1)


def _draw(axis: Any, curves: Sequence[np.ndarray[Any, Any]], colour: str, label: str) -> None:
    """Draw mean and range of the curves on a grid of token counts that all seeds reached."""
    start, stop = max(c[0, 0] for c in curves), min(c[-1, 0] for c in curves)
    grid = np.linspace(start, stop, 200)
    values = np.stack([np.interp(grid, c[:, 0], c[:, 1]) for c in curves])
    axis.fill_between(grid, values.min(axis=0), values.max(axis=0), color=colour, alpha=0.15, linewidth=0)
    axis.plot(grid, values.mean(axis=0), color=colour, linewidth=2, label=label)


def _mark(axis: Any, evaluations: Sequence[Sequence[Sequence[float]]], colour: str) -> None:
    """Draw the held-out rewards of each seed with their intervals over tasks."""
    for points in evaluations:
        _, tokens, rewards, halves, _ = zip(*points, strict=True)
        axis.errorbar(np.array(tokens) / 1000, rewards, halves, fmt="o", color=colour, capsize=3, markersize=5)
