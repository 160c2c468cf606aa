"""Lines of an evaluation about cooperation: revisions, free riders, and partners from different models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from marl_ray.cooperation.recombined_answers import contribution_name, least_contribution
from marl_ray.cooperation.revisions import pass_at_2, revision_counts
from marl_ray.core.episode import Episode
from marl_ray.core.random_streams import stream_seed
from marl_ray.core.statistics import Estimate, bootstrap_estimates, describe_estimate

Matrix = Mapping[tuple[str, str], Estimate]
"""Rewards by the models of agent 0 and of agent 1."""
MIN_WIDTH = 25
"""Characters of a column of the matrix."""


def revision_lines(label: str, episodes: Sequence[Episode]) -> Iterator[str]:
    """Yield a line per turn from 2: passing answers kept, failing answers mended, and pass@2 of first answers."""
    pairs = pass_at_2(episodes)
    beside = "" if pairs is None else f"; one of two first answers passes in {pairs:.3f}"
    for turn, (kept, passing, mended, failing) in revision_counts(episodes).items():
        yield (
            f"{label}: turn {turn} keeps {kept} of {passing} passing answers and mends {mended} of {failing} failing "
            f"ones{beside}"
        )


def cooperation_lines(models: Mapping[str, Mapping[str, Estimate]]) -> Iterator[str]:
    """Yield a line per model with measures of cooperation: the agent that contributes least."""
    for label, estimates in models.items():
        means = {name: estimate.mean for name, estimate in estimates.items()}
        agent = least_contribution(means)
        if agent is None:
            continue
        estimate = estimates[contribution_name(agent)]
        free_rider = ", which may be nothing: a free rider" if estimate.low <= 0 else ""
        yield f"{label}: agent {agent} contributes least, {describe_estimate(estimate)} of the reward{free_rider}"


def cross_play_estimates(
    rewards: Mapping[tuple[str, str], Sequence[float]], seed: int
) -> dict[tuple[str, str], Estimate]:
    """Return the mean over tasks of each pair of models; pairs without a reward are left out."""
    if not rewards:
        return {}
    columns = np.array(list(rewards.values()), dtype=np.float64).T
    estimates = bootstrap_estimates(columns, stream_seed(seed, "cross play"))
    known = {}
    for pair, estimate in zip(rewards, estimates, strict=True):
        if estimate is not None:
            known[pair] = estimate
    return known


def cross_play_table(matrix: Matrix) -> Iterator[str]:
    """Yield the matrix with the models of agent 0 as rows, then the means with own and with other partners."""
    yield "reward of turn 1, by model of agent 0 (rows) and of agent 1 (columns); no new samples"
    yield from matrix_lines(matrix, list(dict.fromkeys(first for first, _ in matrix)))
    yield from partner_means(matrix)


def partner_means(matrix: Matrix) -> Iterator[str]:
    """Yield the means of the diagonal, whose agents were trained together, and of all other cells."""
    with_own: list[float] = []
    with_other: list[float] = []
    for (first, second), estimate in matrix.items():
        means = with_own if first == second else with_other
        means.append(estimate.mean)
    if with_own and with_other:
        own = np.mean(with_own)
        yield f"with the own partner {own:.3f}, with a partner of another model {np.mean(with_other):.3f}"


def matrix_lines(matrix: Matrix, labels: Sequence[str]) -> Iterator[str]:
    """Yield a line with the models of agent 1, and a line per model of agent 0; `-` for a pair without an estimate."""
    label_width = max(map(len, labels))
    width = max(MIN_WIDTH, label_width)
    yield " " * label_width + "".join(f"  {label:>{width}}" for label in labels)
    for first in labels:
        line = f"{first:<{label_width}}"
        for second in labels:
            cell = "-"
            if (first, second) in matrix:
                cell = describe_estimate(matrix[first, second])
            line += f"  {cell:>{width}}"
        yield line
