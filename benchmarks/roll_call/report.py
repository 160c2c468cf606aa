"""The choice of learning rates, the tables and the figure, from the lines of the results."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.learning.primary import Comparison, primary_table
from benchmarks.markdown import markdown
from benchmarks.roll_call.arms import AGAIN, CELLS, CREDITS, FIRST, RATES, STEPS, Cell, Trial
from benchmarks.roll_call.constant import constant_reward
from benchmarks.roll_call.crossing import STEP_SAMPLES, geometric_mean

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "results" / "credit_over_agents.md"
MARKER = "<!-- made by python -m benchmarks.roll_call, {} -->"
END = "<!-- end -->"
ALL_SAMPLES = STEPS * STEP_SAMPLES
"""Joint samples of a whole run. A run that does not reach the target counts with this number, which is too small: a
ratio whose numerator has such runs is a lower bound."""
LAST = 8
"""Steps whose mean reward is the final reward."""
Line = Mapping[str, Any]


def shared_less_difference(agents: int) -> Comparison:
    """Return the comparison of shared reward and difference reward at a number of agents."""
    name = f"{agents} agents: shared, less difference"
    return Comparison(name, f"shared_{agents}", f"difference_{agents}", "log2")


PRIMARY = (
    *map(shared_less_difference, (2, 4, 8)),
    Comparison("that with 8 agents, less that with 2", "ratio_8", "ratio_2", "log2"),
)
"""Differences of log2 of joint samples, paired by seed: 1 means twice as many."""
REPEATED = PRIMARY[1:]
"""The family of the repetition with four and eight agents. Two agents were repeated before, as a test of their own."""


def samples_of(line: Line) -> int:
    """Return the joint samples until the target, or all of the run."""
    return int(line["samples"] or ALL_SAMPLES)


def best_rate(lines: Sequence[Line], cell: Cell, trial: Trial = FIRST) -> float | None:
    """Return the rate with the fewest joint samples on the seeds of the choice, of equal ones that with the higher mean
    reward of all steps; None if a run is missing."""
    found = []
    for rate in RATES:
        own = [line for line in lines if line["arm"] == cell.arm(rate) and line["seed"] in trial.choice]
        if len(own) < len(trial.choice):
            return None
        reward = fmean(fmean(line["curve"]) for line in own)
        found.append((geometric_mean(list(map(samples_of, own))), -reward, rate))
    return min(found)[2]


def by_rate(lines: Sequence[Line], trial: Trial = FIRST) -> dict[tuple[str, float], dict[int, Line]]:
    """Return the measured lines by cell, rate and seed."""
    found: dict[tuple[str, float], dict[int, Line]] = {}
    for cell in CELLS.values():
        for rate in RATES:
            own = {}
            for line in lines:
                if line["arm"] == cell.arm(rate) and line["seed"] in trial.measured:
                    own[line["seed"]] = line
            if own:
                found[cell.name, rate] = own
    return found


def measured(lines: Sequence[Line], trial: Trial = FIRST) -> dict[str, dict[int, Line]]:
    """Return the lines at the chosen rates by cell and seed."""
    found = {}
    for (name, rate), of_seeds in by_rate(lines, trial).items():
        if rate == best_rate(lines, CELLS[name], trial):
            found[name] = of_seeds
    return found


def primary(lines: Sequence[Line], trial: Trial = FIRST, comparisons: Sequence[Comparison] = PRIMARY) -> str:
    """Return the table of the comparisons."""
    return primary_table(comparable(lines, trial), comparisons)


def comparable(lines: Sequence[Line], trial: Trial) -> list[dict[str, Any]]:
    """Return the log2 of the joint samples of each cell and seed at the chosen rate, and of the ratios."""
    compared: list[dict[str, Any]] = []
    logs: dict[tuple[str, int], float] = {}
    for cell, of_seeds in measured(lines, trial).items():
        for seed, line in of_seeds.items():
            logs[cell, seed] = math.log2(samples_of(line))
    for (cell, seed), log in list(logs.items()):
        credit, agents = cell.rsplit("_", 1)
        other = logs.get((f"difference_{agents}", seed))
        if credit == "shared" and other is not None:
            logs[f"ratio_{agents}", seed] = log - other
    for (arm, seed), log in logs.items():
        compared.append({"arm": arm, "seed": seed, "after": {"log2": log}})
    return compared


def table(lines: Sequence[Line], chosen: bool, trial: Trial = FIRST) -> str:
    """Return a row per cell at its chosen rate, or at each other rate: seeds that reach the target, joint samples, and
    the final reward."""
    rows = [["agents", "credit", "rate", "seeds", "reach 90 %", "joint samples", "least to most", "final reward"]]
    for (name, rate), of_seeds in by_rate(lines, trial).items():
        if (rate == best_rate(lines, CELLS[name], trial)) is chosen:
            rows.append(_row(CELLS[name], rate, of_seeds))
    return markdown(rows)


def _row(cell: Cell, rate: float, of_seeds: Mapping[int, Line]) -> list[str]:
    samples = list(map(samples_of, of_seeds.values()))
    reached = sum(line["samples"] is not None for line in of_seeds.values())
    bound = "" if reached == len(samples) else "at least "
    final = fmean(fmean(line["curve"][-LAST:]) for line in of_seeds.values())
    return [
        str(cell.agents),
        cell.title,
        f"{rate:g}",
        str(len(samples)),
        str(reached),
        f"{bound}{geometric_mean(samples):.0f}",
        f"{min(samples)} to {max(samples)}",
        f"{final:.2f}",
    ]


def constants() -> str:
    """Return the table of the best answers that do not depend on the rows."""
    rows = [["agents", "share of right cells", "worst writer"]]
    for agents in (2, 4, 8):
        rewards = [f"{constant_reward(agents, team):.3f}" for team in ("mean", "worst")]
        rows.append([str(agents), *rewards])
    return markdown(rows)


def tables(lines: Sequence[Line]) -> dict[str, str]:
    """Return the page's tables by the names in their markers."""
    return {
        "primary": primary(lines),
        "all cells": table(lines, chosen=True),
        "other rates": table(lines, chosen=False),
        "two agents again": primary(lines, AGAIN, [shared_less_difference(2)]),
        "four and eight agents again": primary(lines, AGAIN, REPEATED),
        "all cells again": table(lines, True, AGAIN),
        "constant answers": constants(),
    }


def write_page(lines: Sequence[Line]) -> None:
    """Write the tables between their markers."""
    text = PAGE.read_text(encoding="utf-8")
    for name, made in tables(lines).items():
        marker = MARKER.format(name)
        before, rest = text.split(marker)
        after = rest.split(END, 1)[1]
        text = f"{before}{marker}\n\n{made}\n\n{END}{after}"
    PAGE.write_text(text, encoding="utf-8")


def draw(lines: Sequence[Line], path: Path) -> None:
    """Draw joint samples over the number of agents: a line per credit through geometric means, a mark per seed."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    found = measured(lines)
    if not found:
        return
    figure, panels = plt.subplots(1, 2, figsize=(9.4, 6.4), sharey=True, layout="constrained")
    for axis, title in zip(panels, ("share of right cells", "worst writer"), strict=True):
        credits = [credit for credit in CREDITS if credit.startswith("worst") is (title == "worst writer")]
        for number, credit in enumerate(credits):
            arm, counts = CREDITS[credit]
            seen = [count for count in counts if f"{credit}_{count}" in found]
            means = []
            for count in seen:
                samples = list(map(samples_of, found[f"{credit}_{count}"].values()))
                means.append(geometric_mean(samples))
                axis.scatter([count] * len(samples), samples, s=9, alpha=0.4, color=f"C{number}")
            axis.plot(seen, means, marker="o", color=f"C{number}", label=arm.title)
            for (name, rate), of_seeds in by_rate(lines).items():
                cell = CELLS[name]
                if name == f"{credit}_{cell.agents}" and rate != best_rate(lines, cell):
                    mean = geometric_mean(list(map(samples_of, of_seeds.values())))
                    label = f"the same at {rate:g}, not chosen"
                    axis.plot([cell.agents], [mean], "o", color=f"C{number}", mfc="none", ms=12, mew=2, label=label)
        axis.axhline(ALL_SAMPLES, color="grey", linewidth=1, linestyle=":")
        axis.set_xscale("log", base=2)
        axis.set_yscale("log", base=2)
        axis.yaxis.set_major_formatter("{x:g}")
        axis.set_xticks([2, 4, 8], ["2", "4", "8"])
        axis.set_xlabel("agents")
        axis.set_title(title, loc="left", fontsize=11)
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
        axis.legend(frameon=False, fontsize=9, loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=1)
    panels[0].set_ylabel("joint samples until 90 % of the optimum")
    figure.savefig(path, dpi=110)
    plt.close(figure)
