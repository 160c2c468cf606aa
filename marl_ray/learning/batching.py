"""From groups of completions to micro-batches that compute each prompt once.

A micro-batch is one packed sequence (see `marl_ray.learning.attention`): the rows one after another, each a prompt
and behind it its completions. The positions of a completion go on from the prompt's end, so that it has the same
log-probabilities as alone (up to rounding). With G completions this takes P + G C tokens instead of G (P + C); only
attention pads completions to the longest of their group.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from marl_ray.learning.advantages import group_advantages
from marl_ray.learning.attention import PackedGroup
from marl_ray.messages import Group


@dataclass(frozen=True, slots=True)
class Sample:
    """One completion and the factor of its summed log-probability in the loss."""

    token_ids: tuple[int, ...]
    behaviour_logprobs: tuple[float, ...]
    weight: float


@dataclass(frozen=True, slots=True)
class Row:
    """One prompt and the completions of it that have a gradient."""

    prompt_ids: tuple[int, ...]
    samples: tuple[Sample, ...]

    @property
    def size(self) -> int:
        """Tokens of the prompt and all completions."""
        return len(self.prompt_ids) + sum(len(s.token_ids) for s in self.samples)


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """A packed sequence of T tokens, N of them in completions.

    input_ids, position_ids: [T]; groups: where each row lies; predictors: [N], the token whose logits predict each
    completion token; tokens, behaviour_logprobs: [N]; weights: [N], the loss weight of the token's completion.
    """

    input_ids: torch.Tensor
    position_ids: torch.Tensor
    groups: tuple[PackedGroup, ...]
    predictors: torch.Tensor
    tokens: torch.Tensor
    behaviour_logprobs: torch.Tensor
    weights: torch.Tensor

    def to(self, device: torch.device) -> MicroBatch:
        """The same on `device`."""
        return MicroBatch(
            input_ids=self.input_ids.to(device),
            position_ids=self.position_ids.to(device),
            groups=tuple(group.to(device) for group in self.groups),
            predictors=self.predictors.to(device),
            tokens=self.tokens.to(device),
            behaviour_logprobs=self.behaviour_logprobs.to(device),
            weights=self.weights.to(device),
        )


def to_rows(
    groups: Sequence[Group],
    turn_weights: Sequence[float],
    estimator: str,
    whiten: bool,
    aggregation: str,
) -> list[Row]:
    """Rows whose weights make the loss: minus the sum over completions of weight * sum_k log pi(token_k | ...).

    sequence_sum: weight = w_t * A / (G * number of groups).
    token_mean: weight = w_t * A / (number of tokens of all groups).
    Completions of weight 0 have no gradient and are left out, and with them groups of equal returns.
    """
    tokens = sum(len(c.token_ids) for group in groups for c in group.completions)
    rows = []
    for group in groups:
        if (estimator != "mareinforce" or whiten) and max(group.returns) == min(group.returns):
            continue  # advantages are 0, if not for rounding
        returns = torch.tensor(group.returns, dtype=torch.float64)
        advantages = group_advantages(returns, estimator, whiten).tolist()
        size = len(group.completions)
        scale = 1 / (size * len(groups)) if aggregation == "sequence_sum" else 1 / max(tokens, 1)
        factor = turn_weights[group.turn] * scale
        samples = tuple(
            Sample(completion.token_ids, completion.logprobs, factor * advantage)
            for completion, advantage in zip(group.completions, advantages, strict=True)
            if factor * advantage != 0 and completion.token_ids
        )
        if samples:
            rows.append(Row(group.prompt_ids, samples))
    return rows


def micro_batches(rows: Sequence[Row], max_tokens: int) -> Iterator[MicroBatch]:
    """Rows packed into micro-batches of at most `max_tokens` tokens (or one completion), in their order."""
    pending: list[Row] = []
    size = 0
    for row in rows:
        for part in split_row(row, max_tokens):
            if pending and size + part.size > max_tokens:
                yield pack(pending)
                pending, size = [], 0
            pending.append(part)
            size += part.size
    if pending:
        yield pack(pending)


def split_row(row: Row, max_tokens: int) -> Iterator[Row]:
    """The row in parts that each fit, if their prompt and one completion do."""
    pending: list[Sample] = []
    size = len(row.prompt_ids)
    for sample in row.samples:
        if pending and size + len(sample.token_ids) > max_tokens:
            yield Row(row.prompt_ids, tuple(pending))
            pending, size = [], len(row.prompt_ids)
        pending.append(sample)
        size += len(sample.token_ids)
    yield Row(row.prompt_ids, tuple(pending))


def pack(rows: Sequence[Row]) -> MicroBatch:
    """The rows as one packed sequence."""
    input_ids: list[int] = []
    position_ids: list[int] = []
    predictors: list[int] = []
    groups = []
    samples = [sample for row in rows for sample in row.samples]
    for row in rows:
        start, length = len(input_ids), len(row.prompt_ids)
        groups.append(PackedGroup.at(start, length, [len(s.token_ids) for s in row.samples]))
        input_ids += row.prompt_ids
        position_ids += range(length)
        for sample in row.samples:
            first, size = len(input_ids), len(sample.token_ids)
            predictors += [start + length - 1, *range(first, first + size - 1)]
            position_ids += range(length, length + size)
            input_ids += sample.token_ids
    return MicroBatch(
        input_ids=torch.tensor(input_ids),
        position_ids=torch.tensor(position_ids),
        groups=tuple(groups),
        predictors=torch.tensor(predictors),
        tokens=torch.tensor([token for sample in samples for token in sample.token_ids]),
        behaviour_logprobs=torch.tensor([value for sample in samples for value in sample.behaviour_logprobs]),
        weights=torch.tensor([sample.weight for sample in samples for _ in sample.token_ids]),
    )
