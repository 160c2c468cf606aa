"""The cost of strangers in the cross-play of docs/results/conventions.md: `python -m benchmarks.cross_play`.

Reads the rows of "Frozen partners with two turns" in docs/results/evaluations.jsonl, one per helper and entry point.
Prints the mean cost of a stranger in each turn, of the pairs that trained without partners, and draws
docs/results/conventions.png; --results selects another folder. `marl-ray eval --swap` makes the numbers of the rows.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.learning.measures import read_lines

RESULTS = Path(__file__).resolve().parents[1] / "docs" / "results"
EVALUATION = "frozen partners with two turns: agent of aux, agent of main"
WITH_PARTNERS = ("11", "12")
WITHOUT_PARTNERS = ("seed 1", "seed 3", "seed 2", "seed 4", "seed 5")
TURNS = (1, 2)
Rewards = Mapping[tuple[str, str], float]
"""Reward by the models of helper and entry point."""


def rewards_of(rows: Sequence[Mapping[str, Any]], turn: int) -> Rewards:
    """Return the mean rewards of a turn."""
    rewards = {}
    for row in rows:
        if row["evaluation"] == EVALUATION:
            helper, entry = row["model"].split(", ")
            rewards[helper, entry], _, _ = row[f"turn_{turn}/reward_mean"]  # and its 95 % interval over tasks
    return rewards


def change(rewards: Rewards, helper: str, entry: str) -> float:
    """Return the reward of a pair less the mean of the two pairs in which its agents trained."""
    return rewards[helper, entry] - (rewards[helper, helper] + rewards[entry, entry]) / 2


def cost_of_strangers(rewards: Rewards, models: Sequence[str]) -> float:
    """Return the mean reward of the own pairs of these models less that of their foreign pairs."""
    changes = []
    for helper in models:
        for entry in models:
            if helper != entry:
                changes.append(change(rewards, helper, entry))
    return -fmean(changes)


def draw(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw a panel per turn with the changes of all pairs. Own pairs are zero by definition."""
    from matplotlib.figure import Figure

    models = (*WITH_PARTNERS, *WITHOUT_PARTNERS)
    figure = Figure(figsize=(10.5, 5.2), layout="constrained")
    axes = figure.subplots(1, len(TURNS), sharey=True)
    labels = []
    for model in models:
        labels.append(f"{model},\nwith partners" if model in WITH_PARTNERS else model)
    for axis, turn in zip(axes, TURNS, strict=True):
        rewards = rewards_of(rows, turn)
        changes = [[change(rewards, helper, entry) for entry in models] for helper in models]
        axis.imshow(changes, cmap="RdBu", vmin=-0.5, vmax=0.5)
        for row, values in enumerate(changes):
            for column, value in enumerate(values):
                text = "own" if row == column else f"{round(value, 2) + 0.0:+.2f}"  # no -0.00
                colour = "white" if abs(value) > 0.35 else "black"
                axis.text(column, row, text, ha="center", va="center", color=colour, fontsize=11)
        axis.set_title(f"turn {turn}: reward less that of the own pairs", loc="left", fontsize=12)
        axis.set_xticks(range(len(models)), models, fontsize=10)
        axis.set_yticks(range(len(models)), labels, fontsize=10)
        axis.set_xlabel("agent of main, from the pair", fontsize=11)
        axis.spines[:].set_visible(False)
        axis.tick_params(length=0)
    axes[0].set_ylabel("agent of aux, from the pair", fontsize=11)
    figure.savefig(path, dpi=110)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of evaluations.jsonl and conventions.png")
    arguments = parser.parse_args(argv)
    rows = read_lines(arguments.results / "evaluations.jsonl")
    if not rows:
        parser.error(f"{arguments.results} has no evaluations.jsonl: copy it from {RESULTS}, or leave --results out")
    for turn in TURNS:
        cost = cost_of_strangers(rewards_of(rows, turn), WITHOUT_PARTNERS)
        print(f"turn {turn}: a stranger costs {cost:.2f}, in the mean over {len(WITHOUT_PARTNERS)} pairs")
    draw(rows, arguments.results / "conventions.png")


if __name__ == "__main__":
    main()
