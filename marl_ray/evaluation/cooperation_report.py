"""Lines of an evaluation about cooperation: revisions, free riders, and partners from different models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from marl_ray.core.episode import Episode
from marl_ray.core.random_streams import stream_seed
from marl_ray.core.statistics import Estimate, bootstrap_estimates
from marl_ray.evaluation.results import EvaluationSummary
from marl_ray.telemetry.cooperation import contribution_name, least_contribution
from marl_ray.telemetry.revisions import pass_at_2, revision_counts

Matrix = Mapping[tuple[str, str], Estimate]
"""Rewards by the models of agent 0 and of agent 1."""


def revision_lines(label: str, episodes: Sequence[Episode]) -> Iterator[str]:
    """Yield a line per turn from 2: passing answers kept, failing answers mended, and pass@2 of first answers."""
    pairs = pass_at_2(episodes)
    beside = "" if pairs is None else f"; one of two first answers passes in {pairs:.3f}"
    for turn, (kept, passing, mended, failing) in revision_counts(episodes).items():
        yield (
            f"{label}: turn {turn} keeps {kept} of {passing} passing answers and mends {mended} of {failing} failing "
            f"ones{beside}"
        )


def cooperation_lines(summary: EvaluationSummary) -> Iterator[str]:
    """Yield a line per model with measures of cooperation: the agent that contributes least."""
    for label, numbers in summary.models.items():
        if (agent := least_contribution({name: estimate.mean for name, estimate in numbers.items()})) is not None:
            estimate = numbers[contribution_name(agent)]
            free = ", which may be nothing: a free rider" if estimate.low <= 0 else ""
            interval = f"[{estimate.low:.3f}, {estimate.high:.3f}]"
            yield f"{label}: agent {agent} contributes least, {estimate.mean:.3f} {interval} of the reward{free}"


def cross_play_estimates(
    rewards: Mapping[tuple[str, str], Sequence[float]], seed: int
) -> dict[tuple[str, str], Estimate]:
    """Return the mean over tasks of each pair of models; pairs without a reward are left out."""
    if not rewards:
        return {}
    columns = np.array(list(rewards.values()), dtype=np.float64).T
    estimates = bootstrap_estimates(columns, stream_seed(seed, "cross play"))
    return {pair: estimate for pair, estimate in zip(rewards, estimates, strict=True) if estimate is not None}


def cross_play_table(matrix: Matrix) -> Iterator[str]:
    """Yield the matrix with the models of agent 0 as rows, then the means of its diagonal and of all other cells."""
    labels = list(dict.fromkeys(first for first, _ in matrix))
    width, columns = max(map(len, labels)), max(25, *map(len, labels))
    yield "reward of turn 1, by model of agent 0 (rows) and of agent 1 (columns); no new samples"
    yield f"{'':<{width}}" + "".join(f"  {label:>{columns}}" for label in labels)
    for row in labels:
        cells = (matrix.get((row, column)) for column in labels)
        texts = ("-" if e is None else f"{e.mean:.3f} [{e.low:.3f}, {e.high:.3f}]" for e in cells)
        yield f"{row:<{width}}" + "".join(f"  {text:>{columns}}" for text in texts)
    own = [estimate.mean for (first, second), estimate in matrix.items() if first == second]
    others = [estimate.mean for (first, second), estimate in matrix.items() if first != second]
    if own and others:
        yield f"with the own partner {np.mean(own):.3f}, with a partner of another model {np.mean(others):.3f}"
