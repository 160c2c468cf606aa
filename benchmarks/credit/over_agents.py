"""The noise of each estimator's gradient over the number of agents, in roll calls of 2, 4 and 8 writers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from benchmarks.credit.audit import Audit
from benchmarks.credit.games import MatrixGame

SKILL = 0.6
"""Probability of a right cell at the audited policies."""
DRAWN = ("magrpo", "magrpo, cross", "reinforce_pp", "difference, empty", "centred_difference, empty", "shapley")


def roll_call(agents: int) -> MatrixGame:
    """Return the exact game of `marl_ray.plugins.roll_call` with one cell per writer: the share of right cells, and 1
    if all are right. Action 0 is right and action 1 wrong, as is no answer."""
    right = np.indices((3,) * agents) == 0
    payoff = right.mean(0) + right.all(0)
    logits = np.log(np.array([[SKILL, 1 - SKILL]]))
    return MatrixGame(f"roll call of {agents}", payoff, (logits,) * agents)


ROLL_CALLS = tuple(map(roll_call, (2, 4, 8)))
Audits = dict[str, dict[int, Audit]]
"""Audits by variant and number of agents."""


def by_variant(audits: Sequence[Sequence[Audit]]) -> Audits:
    """Return the audits of ROLL_CALLS, given in the order of the games."""
    found: Audits = {}
    for game, of_game in zip(ROLL_CALLS, audits, strict=True):
        for one in of_game:
            found.setdefault(one.variant, {})[game.agents] = one
    return found


def noise_rows(audits: Audits) -> Iterator[list[str]]:
    """Yield the noise of each variant by number of agents, and its growth from the fewest to the most agents."""
    counts = [game.agents for game in ROLL_CALLS]
    yield ["estimator", *(f"noise, {count} agents" for count in counts), "growth", f"fidelity, {counts[-1]} agents"]
    for variant, of_counts in audits.items():
        noises = [f"{of_counts[count].noise:.2f}" if count in of_counts else "" for count in counts]
        ends = ["", ""]
        if counts[-1] in of_counts:
            growth = of_counts[counts[-1]].noise / of_counts[counts[0]].noise
            ends = [f"{growth:.1f}", f"{of_counts[counts[-1]].fidelity:.2f}"]
        yield [variant, *noises, *ends]


def draw(audits: Audits, path: Path) -> None:
    """Draw the noise over the number of agents."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axis = plt.subplots(figsize=(6.4, 4.0), layout="constrained")
    for variant in DRAWN:
        of_counts = audits[variant]
        axis.plot(list(of_counts), [one.noise for one in of_counts.values()], marker="o", label=variant)
    counts = [game.agents for game in ROLL_CALLS]
    axis.set_xscale("log", base=2)
    axis.set_yscale("log", base=2)
    axis.yaxis.set_major_formatter("{x:g}")
    axis.set_xticks(counts, list(map(str, counts)))
    axis.set_xlabel("agents")
    axis.set_ylabel("variance of one group's gradient / squared mean")
    axis.grid(alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False)
    figure.savefig(path, dpi=110)
    plt.close(figure)
