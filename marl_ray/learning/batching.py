"""From groups of completions to micro-batches that compute each prompt once.

A row is one group: its prompt, padded on the left, and behind it all completions one after another. A completion
attends to the prompt and to itself, and its positions go on from the prompt's end, so that it has the same
log-probabilities as alone (up to rounding):

    [pad  prompt | completion 1  completion 2 ... pad]

With G completions this takes P + G C tokens instead of G (P + C).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from marl_ray.learning.advantages import group_advantages
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
    def width(self) -> int:
        """Tokens of all completions."""
        return sum(len(s.token_ids) for s in self.samples)


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """B rows, P prompt columns and C completion columns, L = P + C.

    input_ids, position_ids: [B, L]; attention: [B, 1, L, L] bool, what each token attends to; predictors: [B, C],
    the column (of the last C + 1) whose logits predict each completion token; tokens, behaviour_logprobs: [B, C];
    mask: [B, C], 1 at real tokens; weights: [B, C], the loss weight of the token's completion.
    """

    input_ids: torch.Tensor
    position_ids: torch.Tensor
    attention: torch.Tensor
    predictors: torch.Tensor
    tokens: torch.Tensor
    behaviour_logprobs: torch.Tensor
    mask: torch.Tensor
    weights: torch.Tensor

    def to(self, device: torch.device) -> MicroBatch:
        """The same on `device`."""
        return MicroBatch(*(getattr(self, name).to(device) for name in self.__slots__))


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


def micro_batches(rows: Sequence[Row], max_tokens: int, pad_id: int) -> Iterator[MicroBatch]:
    """Split rows so that each micro-batch has at most `max_tokens` padded tokens (or one completion).

    Rows of like length go together; the order does not matter to the sum.
    """
    fitting = [part for row in rows for part in split_row(row, max_tokens)]
    ordered = sorted(fitting, key=lambda row: (len(row.prompt_ids), row.width))
    pending: list[Row] = []
    prompt_width = width = 0
    for row in ordered:
        wider_prompt, wider = max(prompt_width, len(row.prompt_ids)), max(width, row.width)
        if pending and (len(pending) + 1) * (wider_prompt + wider) > max_tokens:
            yield _collate(pending, pad_id)
            pending = []
            wider_prompt, wider = len(row.prompt_ids), row.width
        pending.append(row)
        prompt_width, width = wider_prompt, wider
    if pending:
        yield _collate(pending, pad_id)


def split_row(row: Row, max_tokens: int) -> Iterator[Row]:
    """The row in parts that each fit, if their prompt and one completion do."""
    pending: list[Sample] = []
    width = len(row.prompt_ids)
    for sample in row.samples:
        if pending and width + len(sample.token_ids) > max_tokens:
            yield Row(row.prompt_ids, tuple(pending))
            pending, width = [], len(row.prompt_ids)
        pending.append(sample)
        width += len(sample.token_ids)
    yield Row(row.prompt_ids, tuple(pending))


def _collate(rows: list[Row], pad_id: int) -> MicroBatch:
    prompt_width = max(len(row.prompt_ids) for row in rows)
    width = max(row.width for row in rows)
    shape = (len(rows), prompt_width + width)
    input_ids = torch.full(shape, pad_id)
    position_ids = torch.zeros(shape, dtype=torch.long)
    segments = torch.full(shape, -1)  # -1: padding, 0: prompt, k: completion k
    predictors = torch.zeros(len(rows), width, dtype=torch.long)
    behaviour, mask, weights = (torch.zeros(len(rows), width) for _ in range(3))
    for index, row in enumerate(rows):
        length = len(row.prompt_ids)
        left = prompt_width - length
        input_ids[index, left:prompt_width] = torch.tensor(row.prompt_ids)
        position_ids[index, left:prompt_width] = torch.arange(length)
        segments[index, left:prompt_width] = 0
        at = 0
        for number, sample in enumerate(row.samples, start=1):
            size = len(sample.token_ids)
            columns = slice(prompt_width + at, prompt_width + at + size)
            input_ids[index, columns] = torch.tensor(sample.token_ids)
            position_ids[index, columns] = torch.arange(length, length + size)
            segments[index, columns] = number
            # Of the last `width + 1` columns, 0 is the prompt's last token: it predicts every first token.
            predictors[index, at : at + size] = torch.tensor([0, *range(at + 1, at + size)])
            behaviour[index, at : at + size] = torch.tensor(sample.behaviour_logprobs)
            mask[index, at : at + size] = 1.0
            weights[index, at : at + size] = sample.weight
            at += size
    return MicroBatch(
        input_ids=input_ids,
        position_ids=position_ids,
        attention=_attention(segments),
        predictors=predictors,
        tokens=input_ids[:, prompt_width:].clone(),
        behaviour_logprobs=behaviour,
        mask=mask,
        weights=weights,
    )


def _attention(segments: torch.Tensor) -> torch.Tensor:
    """[B, 1, L, L] from segments [B, L]: causal, within the prompt and the token's own completion.

    Padding attends to itself, so that no softmax is empty.
    """
    length = segments.shape[1]
    query, key = segments.unsqueeze(2), segments.unsqueeze(1)
    causal = torch.ones(length, length, dtype=torch.bool).tril()
    seen = causal & ((key == query) | (key == 0)) & (key >= 0) & (query >= 0)
    return (seen | torch.eye(length, dtype=torch.bool)).unsqueeze(1)
