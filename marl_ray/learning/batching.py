"""From groups of completions to micro-batches, in one of two layouts.

packed: one sequence (see `marl_ray.learning.attention`): the rows one after another, each a prompt and behind it its
completions. The positions of a completion go on from the prompt's end, so that it has the same log-probabilities as
alone (up to rounding). With G completions this takes P + G C tokens instead of G (P + C); only attention pads
completions to the longest of their group.

padded: every completion behind a prompt of its own, a row of a rectangle, filled up on the right. It needs no mask: in
a model that looks only back, nothing depends on what comes after. So it serves every decoder, whatever its layers are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch

from marl_ray.core.messages import Group
from marl_ray.credit.estimators import group_advantages
from marl_ray.learning.attention import PackedGroup

Layout = Literal["packed", "padded"]
NO_TOKEN = -100
"""In `MicroBatch.tokens` where nothing is predicted; cross_entropy leaves it out."""
PADDING = 0
"""Any id: what follows a sequence changes nothing in it."""


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
    """B sequences of L tokens (packed: one), and what their logits at C columns predict.

    input_ids: [B, L]; columns: [C]; tokens: [B * C], the completion token predicted there, or NO_TOKEN;
    behaviour_logprobs, weights: [B * C], the token's log-probability and the loss weight of its completion, else 0.
    Packed ones have position_ids [1, L], and `groups`, where each row lies; padded ones have neither.
    """

    input_ids: torch.Tensor
    columns: torch.Tensor
    tokens: torch.Tensor
    behaviour_logprobs: torch.Tensor
    weights: torch.Tensor
    position_ids: torch.Tensor | None = None
    groups: tuple[PackedGroup, ...] = ()

    def to(self, device: torch.device) -> MicroBatch:
        """The same on `device`."""
        return replace(
            self,
            input_ids=self.input_ids.to(device),
            columns=self.columns.to(device),
            tokens=self.tokens.to(device),
            behaviour_logprobs=self.behaviour_logprobs.to(device),
            weights=self.weights.to(device),
            position_ids=None if self.position_ids is None else self.position_ids.to(device),
            groups=tuple(group.to(device) for group in self.groups),
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


def micro_batches(rows: Sequence[Row], max_tokens: int, layout: Layout) -> Iterator[MicroBatch]:
    """All rows in micro-batches of at most `max_tokens` tokens, padding counted (or one completion)."""
    return _packed(rows, max_tokens) if layout == "packed" else _padded(rows, max_tokens)


def _packed(rows: Sequence[Row], max_tokens: int) -> Iterator[MicroBatch]:
    """In their order."""
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


def _padded(rows: Sequence[Row], max_tokens: int) -> Iterator[MicroBatch]:
    """From the shortest to the longest, so that there is little to fill up."""
    single = [Row(row.prompt_ids, (sample,)) for row in rows for sample in row.samples]
    pending: list[Row] = []
    for row in sorted(single, key=lambda row: row.size):
        if pending and (len(pending) + 1) * row.size > max_tokens:
            yield pad(pending)
            pending = []
        pending.append(row)
    if pending:
        yield pad(pending)


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
    columns: list[int] = []
    groups = []
    samples = [sample for row in rows for sample in row.samples]
    for row in rows:
        start, length = len(input_ids), len(row.prompt_ids)
        groups.append(PackedGroup.at(start, length, [len(s.token_ids) for s in row.samples]))
        input_ids += row.prompt_ids
        position_ids += range(length)
        for sample in row.samples:
            first, size = len(input_ids), len(sample.token_ids)
            columns += [start + length - 1, *range(first, first + size - 1)]
            position_ids += range(length, length + size)
            input_ids += sample.token_ids
    return MicroBatch(
        input_ids=torch.tensor([input_ids]),
        columns=torch.tensor(columns),
        tokens=torch.tensor([token for sample in samples for token in sample.token_ids]),
        behaviour_logprobs=torch.tensor([value for sample in samples for value in sample.behaviour_logprobs]),
        weights=torch.tensor([sample.weight for sample in samples for _ in sample.token_ids]),
        position_ids=torch.tensor([position_ids]),
        groups=tuple(groups),
    )


def pad(rows: Sequence[Row]) -> MicroBatch:
    """Rows of one completion each as a rectangle. A completion's last token predicts nothing and is left out."""
    first = min(len(row.prompt_ids) for row in rows) - 1
    width = max(row.size for row in rows) - 1
    input_ids = torch.full((len(rows), width), PADDING)
    tokens = torch.full((len(rows), width - first), NO_TOKEN)
    behaviour_logprobs, weights = torch.zeros(tokens.shape), torch.zeros(tokens.shape)
    for i, row in enumerate(rows):
        (sample,) = row.samples
        ids = torch.tensor(row.prompt_ids + sample.token_ids)
        input_ids[i, : len(ids) - 1] = ids[:-1]
        begin = len(row.prompt_ids) - 1 - first
        predicted = slice(begin, begin + len(sample.token_ids))
        tokens[i, predicted] = torch.tensor(sample.token_ids)
        behaviour_logprobs[i, predicted] = torch.tensor(sample.behaviour_logprobs)
        weights[i, predicted] = sample.weight
    return MicroBatch(
        input_ids=input_ids,
        columns=torch.arange(first, width),
        tokens=tokens.flatten(),
        behaviour_logprobs=behaviour_logprobs.flatten(),
        weights=weights.flatten(),
    )
