"""Micro-batches built from groups of completions, in one of two layouts.

packed: one sequence (see `marl_ray.learning.attention`) of prompts, each followed by its completions. Positions of a
completion continue from the prompt's end, so it has the same log-probabilities as alone, up to rounding. The turns of a
conversation are one row: the prompt of its last turn contains the earlier prompts and the answers that were continued.

padded: a rectangle with one row per completion, each with its own prompt, padded on the right. A causal model needs no
mask for that, so this layout works for every decoder.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import chain
from typing import Any, Literal, TypeVar

import torch

from marl_ray.core.batch import Group
from marl_ray.learning.attention import PackedGroup, PackedGroups
from marl_ray.learning.logprobs import NO_TOKEN
from marl_ray.learning.ranks import SINGLE_RANK, RankGroup

T = TypeVar("T")
Layout = Literal["packed", "padded"]
PADDING = 0
"""Token id of padding; any id works, because tokens after a sequence do not affect it."""
WINDOW = 8
"""Micro-batches whose rows are sorted together in the padded layout."""


@dataclass(frozen=True, slots=True)
class WeightedCompletion:
    """A completion, with the factors in the loss of its summed log-probability, reference KL and entropy.

    old_logprobs: the policy's log-probabilities before the batch's first optimizer step; None in the first mini-batch
    and for losses without a clip range, which use the current ones. reference_logprobs: the reference policy's, if
    there is one. json_schema: the schema that constrained the sampler, as JSON text, or empty.
    """

    token_ids: tuple[int, ...]
    behaviour_logprobs: tuple[float, ...]
    weight: float
    kl_weight: float = 0.0
    entropy_weight: float = 0.0
    old_logprobs: tuple[float, ...] | None = None
    reference_logprobs: tuple[float, ...] | None = None
    json_schema: str = ""


@dataclass(frozen=True, slots=True)
class PromptRow:
    """A prompt and its trained completions, each after the first `starts` tokens of the prompt (empty: after all).

    A completion whose tokens the prompt has at this place is an earlier answer of a conversation: its tokens are
    trained where they are in the prompt, and its siblings branch off there.
    """

    prompt_ids: tuple[int, ...]
    completions: tuple[WeightedCompletion, ...]
    starts: tuple[int, ...] = ()

    @property
    def size(self) -> int:
        """Tokens of the prompt and of all completions that it does not contain."""
        outside = (c for number, c in enumerate(self.completions) if not self.contains(number))
        return len(self.prompt_ids) + sum(len(c.token_ids) for c in outside)

    def start(self, number: int) -> int:
        """Return the number of prompt tokens before a completion."""
        return self.starts[number] if self.starts else len(self.prompt_ids)

    def contains(self, number: int) -> bool:
        """Return whether the prompt contains the tokens of a completion, at the completion's place."""
        if not self.starts:
            return False
        start, ids = self.starts[number], self.completions[number].token_ids
        return self.prompt_ids[start : start + len(ids)] == ids

    def extended_by(self, later: PromptRow) -> PromptRow | None:
        """Return both rows as one if the prompt of `later` continues one of this row's answers; otherwise None."""
        end, prompt = len(self.prompt_ids), later.prompt_ids
        if len(prompt) <= end or later.starts or prompt[:end] != self.prompt_ids:
            return None
        answers = (c.token_ids for number, c in enumerate(self.completions) if self.start(number) == end)
        if not any(prompt[end : end + len(ids)] == ids for ids in answers):
            return None
        starts = [self.start(number) for number in range(len(self.completions))]
        completions = (*self.completions, *later.completions)
        return PromptRow(prompt, completions, (*starts, *(len(prompt) for _ in later.completions)))


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """B sequences of L tokens (B = 1 if packed), with the tokens that their logits at C columns predict.

    - input_ids: [B, L]; columns: [C];
    - tokens: [B * C], the predicted completion token, or NO_TOKEN;
    - behaviour_logprobs, weights, kl_weights, entropy_weights: [B * C], the token's log-probability and the factors of
      its completion, or 0;
    - owners: [B * C], the index of the token's completion in `completions`, or their number;
    - old_logprobs, reference_logprobs: [B * C], or None if completions have none;
    - position_ids: [1, L], and groups: only in the packed layout.
    """

    input_ids: torch.Tensor
    columns: torch.Tensor
    tokens: torch.Tensor
    behaviour_logprobs: torch.Tensor
    weights: torch.Tensor
    kl_weights: torch.Tensor
    entropy_weights: torch.Tensor
    owners: torch.Tensor
    completions: tuple[WeightedCompletion, ...]
    old_logprobs: torch.Tensor | None = None
    reference_logprobs: torch.Tensor | None = None
    position_ids: torch.Tensor | None = None
    groups: PackedGroups | None = None

    def to(self, device: torch.device) -> MicroBatch:
        """Return a copy on `device`."""
        values = ((field.name, getattr(self, field.name)) for field in fields(self))
        moved: dict[str, Any] = {name: v.to(device) for name, v in values if isinstance(v, torch.Tensor)}
        return replace(self, **moved, groups=self.groups and self.groups.to(device))


def trainable_rows(
    groups: Sequence[Group], entropy_weights: Callable[[Group], Sequence[float]] | None = None
) -> list[PromptRow]:
    """Return a row per group with its completions of non-zero weight, without empty rows.

    The loss is -sum over completions of weight * sum_k log pi(token_k | prompt, tokens before k), less the entropy
    bonus if there are `entropy_weights`.
    """
    rows = []
    for group in groups:
        bonus = [0.0] * len(group.completions) if entropy_weights is None else entropy_weights(group)
        parts = zip(group.completions, group.weights, bonus, strict=True)
        trained = [
            WeightedCompletion(c.token_ids, c.logprobs, weight, entropy_weight=own, json_schema=c.json_schema)
            if (weight or own) and c.token_ids
            else None
            for c, weight, own in parts
        ]
        rows += rows_of(group, trained)
    return rows


def rows_of(group: Group, trained: Sequence[WeightedCompletion | None]) -> list[PromptRow]:
    """Return the rows of a group's trained completions (None: not trained), without empty rows.

    The calls with equal prompts are one row, except a call whose answer another call's prompt continues: this call is a
    row of its own, which the micro-batcher joins with its continuation.
    """
    calls = [(prompt, one) for prompt, one in zip(group.prompts, trained, strict=True) if one is not None]
    counts = Counter(prompt for prompt, _ in calls)
    ends = {prompt + one.token_ids for prompt, one in calls if counts[prompt] > 1}
    lengths = {len(ids) for ids in ends}
    continued = {prompt[:length] for prompt in counts for length in lengths if length < len(prompt)} & ends
    rows, shared = list[PromptRow](), dict[tuple[int, ...], list[WeightedCompletion]]()
    for prompt, one in calls:
        if prompt + one.token_ids in continued:
            rows.append(PromptRow(prompt, (one,)))
        elif prompt in shared:
            shared[prompt].append(one)
        else:
            shared[prompt] = [one]
            rows.append(PromptRow(prompt, ()))
    return [row if row.completions else replace(row, completions=tuple(shared[row.prompt_ids])) for row in rows]


def unweighted_row(group: Group) -> PromptRow:
    """Return a row with all non-empty completions of a group, with weight 0."""
    non_empty = (c for c in group.completions if c.token_ids)
    completions = (WeightedCompletion(c.token_ids, c.logprobs, 0.0, json_schema=c.json_schema) for c in non_empty)
    return PromptRow(group.prompt_ids, tuple(completions))


class MicroBatcher:
    """Splits a stream of rows into micro-batches of at most `max_tokens` padded tokens, or of one completion.

    The split depends only on the order of the rows, not on the portions in which they arrive. Rows are collected in a
    window until it is full or `flush` is called. A packed window is one micro-batch, in which rows that continue a
    conversation are joined if the joined row is at most `max_tokens` long. A padded window has the tokens of WINDOW
    micro-batches and is sorted by length, which keeps padding low.

    With several ranks, each rank receives all rows and returns its own micro-batches. Windows are larger by the number
    of ranks, and their rows are distributed by tokens. All ranks return equally many micro-batches, some of them idle.
    """

    def __init__(self, max_tokens: int, layout: Layout, ranks: RankGroup = SINGLE_RANK) -> None:
        self._max_tokens, self._layout, self._ranks = max_tokens, layout, ranks
        self._window = ranks.size * (max_tokens if layout == "packed" else WINDOW * max_tokens)
        self._pending: list[PromptRow] = []
        self._size = 0

    def add(self, rows: Sequence[PromptRow]) -> list[MicroBatch]:
        """Add rows, and return the micro-batches that are complete."""
        return [micro_batch for window in self._windows(rows) for micro_batch in self._split(window)]

    def flush(self) -> list[MicroBatch]:
        """Return the micro-batches of the remaining rows; the next row starts a new window."""
        return self._split(self._take_window())

    def per_row(self, rows: Sequence[PromptRow]) -> list[MicroBatch]:
        """Return micro-batches of a single row each, so that a row's result is bit-identical whatever the others."""
        of_ranks = []
        for share in distribute_rows(rows, self._ranks.size):
            parts: list[list[PromptRow]] = []
            for row in share:
                for window in (*self._windows([row]), self._take_window()):
                    parts += self._split_rows(window)
            of_ranks.append(parts)
        return self._lay_out(of_ranks)

    def _windows(self, rows: Sequence[PromptRow]) -> Iterator[list[PromptRow]]:
        """Yield full windows; in the padded layout their rows have one completion."""
        for row in rows:
            for part in split_row(row, self._max_tokens if self._layout == "packed" else 0):
                if self._layout == "packed" and self._joins(part):
                    continue
                if self._pending and self._size + part.size > self._window:
                    yield self._take_window()
                self._pending.append(part)
                self._size += part.size

    def _joins(self, row: PromptRow) -> bool:
        """Join a row to the pending row whose conversation it continues. Return whether there is one with room."""
        for number, pending in enumerate(self._pending):
            joined = pending.extended_by(row)
            if joined is None or joined.size > self._max_tokens:
                continue
            size = self._size - pending.size + joined.size
            if size <= self._window:
                self._pending[number], self._size = joined, size
                return True
        return False

    def _take_window(self) -> list[PromptRow]:
        pending, self._pending, self._size = self._pending, [], 0
        return pending

    def _split(self, window: list[PromptRow]) -> list[MicroBatch]:
        rows = split_for_ranks(window, self._ranks.size)
        return self._lay_out([self._split_rows(share) for share in distribute_rows(rows, self._ranks.size)])

    def _split_rows(self, rows: Sequence[PromptRow]) -> list[list[PromptRow]]:
        if self._layout == "packed":
            return list(split_if_full(rows, lambda part: sum(row.size for row in part) > self._max_tokens))
        rows = sorted(rows, key=lambda row: row.size)
        return list(split_if_full(rows, lambda part: len(part) * part[-1].size > self._max_tokens))

    def _lay_out(self, of_ranks: Sequence[Sequence[list[PromptRow]]]) -> list[MicroBatch]:
        """Return this rank's micro-batches, given the rows of all ranks."""
        lay_out = pad if self._layout == "padded" else pack
        own = [lay_out(rows) for rows in of_ranks[self._ranks.rank]]
        return own + [idle_micro_batch(self._layout)] * (max(map(len, of_ranks)) - len(own))


def split_for_ranks(rows: Sequence[PromptRow], ranks: int) -> list[PromptRow]:
    """Split the largest rows in halves, by completions, until every rank can have one. A rank would have nothing to
    compute otherwise, while the others compute a prompt with all its completions."""
    parts = list(rows)
    while len(parts) < ranks:
        divisible = [number for number, row in enumerate(parts) if len(row.completions) > 1 and not row.starts]
        if not divisible:
            break
        largest = max(divisible, key=lambda number: parts[number].size)
        row = parts[largest]
        middle = len(row.completions) // 2
        halves = row.completions[:middle], row.completions[middle:]
        parts[largest : largest + 1] = [PromptRow(row.prompt_ids, half) for half in halves]
    return parts


def distribute_rows(rows: Sequence[PromptRow], ranks: int) -> list[list[PromptRow]]:
    """Distribute rows over ranks, largest first, each to the rank with the fewest tokens; keep their order."""
    shares: list[list[int]] = [[] for _ in range(ranks)]
    tokens = [0] * ranks
    for number in sorted(range(len(rows)), key=lambda number: -rows[number].size):
        rank = tokens.index(min(tokens))
        tokens[rank] += rows[number].size
        shares[rank].append(number)
    return [[rows[number] for number in sorted(share)] for share in shares]


def split_if_full(items: Iterable[T], is_full: Callable[[list[T]], bool]) -> Iterator[list[T]]:
    """Yield the items in order, in the longest parts that are not too full, or of one item."""
    part: list[T] = []
    for item in items:
        if part and is_full([*part, item]):
            yield part
            part = []
        part.append(item)
    if part:
        yield part


def split_row(row: PromptRow, max_tokens: int) -> Iterator[PromptRow]:
    """Split a row into rows of at most `max_tokens` tokens, or of one completion."""
    max_tokens -= len(row.prompt_ids)
    for part in split_if_full(row.completions, lambda part: sum(len(c.token_ids) for c in part) > max_tokens):
        yield PromptRow(row.prompt_ids, tuple(part))


def pack(rows: Sequence[PromptRow]) -> MicroBatch:
    """Return the rows as one packed sequence."""
    input_ids: list[int] = []
    position_ids: list[int] = []
    columns: list[int] = []
    groups = []
    for row in rows:
        begin, length = len(input_ids), len(row.prompt_ids)
        outside = [number for number in range(len(row.completions)) if not row.contains(number)]
        lengths = [len(row.completions[number].token_ids) for number in outside]
        groups.append(PackedGroup.of(length, lengths, [row.start(number) for number in outside]))
        input_ids += row.prompt_ids
        position_ids += range(length)
        for number, completion in enumerate(row.completions):
            start, size = row.start(number), len(completion.token_ids)
            if row.contains(number):
                columns += range(begin + start - 1, begin + start - 1 + size)
                continue
            first = len(input_ids)
            columns += [begin + start - 1, *range(first, first + size - 1)]
            position_ids += range(start, start + size)
            input_ids += completion.token_ids
    return MicroBatch(
        input_ids=torch.tensor([input_ids]),
        columns=torch.tensor(columns),
        **_tokens_of([completion for row in rows for completion in row.completions]),
        position_ids=torch.tensor([position_ids]),
        groups=PackedGroups(groups),
    )


def pad(rows: Sequence[PromptRow]) -> MicroBatch:
    """Return rows of one completion each as a rectangle, without the last token, which predicts nothing."""
    first = min(len(row.prompt_ids) for row in rows) - 1
    width = max(row.size for row in rows) - 1
    input_ids = torch.full((len(rows), width), PADDING)
    real = torch.zeros((len(rows), width - first), dtype=torch.bool)
    for i, row in enumerate(rows):
        (completion,) = row.completions
        ids = torch.tensor(row.prompt_ids + completion.token_ids)
        input_ids[i, : len(ids) - 1] = ids[:-1]
        begin = len(row.prompt_ids) - 1 - first
        real[i, begin : begin + len(completion.token_ids)] = True
    per_token = _tokens_of([completion for row in rows for completion in row.completions])
    fill = {"tokens": NO_TOKEN, "owners": len(rows)}
    for name, values in per_token.items():
        if isinstance(values, torch.Tensor):
            per_token[name] = torch.full(real.shape, fill.get(name, 0), dtype=values.dtype)
            per_token[name][real] = values
            per_token[name] = per_token[name].flatten()
    return MicroBatch(input_ids=input_ids, columns=torch.arange(first, width), **per_token)


def idle_micro_batch(layout: Layout) -> MicroBatch:
    """Return a sequence without predicted tokens and thus a zero gradient, for a rank without rows."""
    row = PromptRow((PADDING,), (WeightedCompletion((PADDING,), (0.0,), 0.0),))
    batch = pack([row]) if layout == "packed" else pad([row])
    return replace(batch, tokens=torch.full_like(batch.tokens, NO_TOKEN), completions=())


def _tokens_of(completions: Sequence[WeightedCompletion]) -> dict[str, Any]:
    """Return the per-token fields of a micro-batch for these completions alone, one after another."""

    def concatenated(values: list[tuple[float, ...] | None]) -> torch.Tensor | None:
        known = [part for part in values if part is not None]
        return torch.tensor(list(chain(*known))) if len(known) == len(values) else None

    lengths = torch.tensor([len(c.token_ids) for c in completions])
    return {
        "tokens": torch.tensor([token for c in completions for token in c.token_ids]),
        "behaviour_logprobs": concatenated([c.behaviour_logprobs for c in completions]),
        "weights": torch.tensor([c.weight for c in completions]).repeat_interleave(lengths),
        "kl_weights": torch.tensor([c.kl_weight for c in completions]).repeat_interleave(lengths),
        "entropy_weights": torch.tensor([c.entropy_weight for c in completions]).repeat_interleave(lengths),
        "owners": torch.arange(len(completions)).repeat_interleave(lengths),
        "completions": tuple(completions),
        "old_logprobs": concatenated([c.old_logprobs for c in completions]),
        "reference_logprobs": concatenated([c.reference_logprobs for c in completions]),
    }
