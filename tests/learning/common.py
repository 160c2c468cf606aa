"""Groups for the learner's tests, made as a run makes them."""

from __future__ import annotations

from collections.abc import Sequence

from marl_ray.core.batch import Batch, Group, MiniBatch
from marl_ray.core.tree import Completion
from marl_ray.credit import ESTIMATORS
from marl_ray.credit.batches import mini_batch
from marl_ray.learning.batching import PromptRow, rows_of


def returned(
    turn: int, prompt_ids: tuple[int, ...], completions: tuple[Completion, ...], returns: tuple[float, ...]
) -> Group:
    """A group with returns, not weighed yet."""
    return Group(turn, prompt_ids, completions, returns, ())


def weigh(groups: Sequence[Group], turn_weights: Sequence[float], estimator: str, aggregation: str) -> MiniBatch:
    """The groups of one optimizer step with their weights."""
    credited = [(g.turn, g.prompt_ids, g.completions, g.returns) for g in groups]
    return mini_batch(credited, turn_weights, ESTIMATORS.get(estimator), False, aggregation)


def to_rows(
    groups: Sequence[Group], turn_weights: Sequence[float], estimator: str, aggregation: str = "sequence_sum"
) -> list[PromptRow]:
    """What of them has a gradient."""
    return rows_of(weigh(groups, turn_weights, estimator, aggregation).groups)


def batch_of(groups: Sequence[Group], size: int) -> Batch:
    """Mini-batches of `size` groups of turn 0, ranked by magrpo."""
    return Batch(
        0,
        tuple(weigh(groups[i : i + size], [1.0], "magrpo", "sequence_sum") for i in range(0, len(groups), size)),
    )
