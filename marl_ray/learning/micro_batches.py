"""Micro-batches built from groups of completions, in one of two layouts.

packed: one sequence (see `marl_ray.learning.attention`) of prompts, each followed by its completions. Positions of a
completion continue from the prompt's end, so it has the same log-probabilities as alone, up to rounding.

padded: a rectangle with one row per completion, each with its own prompt, padded on the right. A causal model needs no
mask for that, so this layout works for every decoder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import chain
from typing import Any, Literal, TypeVar

import torch

from marl_ray.core.batch import Group
from marl_ray.learning.attention import PackedGroup, PackedGroups
from marl_ray.learning.logprobs import NO_TOKEN
from marl_ray.learning.prompt_rows import PromptRow, WeightedCompletion, rows_of
from marl_ray.learning.ranks import SINGLE_RANK, RankGroup

T = TypeVar("T")
Layout = Literal["packed", "padded"]
PADDING = 0
"""Token id of padding; any id works, because tokens after a sequence do not affect it."""
WINDOW = 8
"""Micro-batches whose rows are sorted together in the padded layout."""


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
        moved: dict[str, Any] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, torch.Tensor | PackedGroups):
                moved[field.name] = value.to(device)
        return replace(self, **moved)


def trainable_rows(
    groups: Sequence[Group], entropy_weights: Callable[[Group], Sequence[float]] | None = None
) -> list[PromptRow]:
    """Return a row per group with its completions of non-zero weight, without empty rows.

    The loss is -sum over completions of weight * sum_k log pi(token_k | prompt, tokens before k), less the entropy
    bonus if there are `entropy_weights`.
    """
    rows = []
    for group in groups:
        bonus: Sequence[float] = [0.0] * len(group.completions)
        if entropy_weights is not None:
            bonus = entropy_weights(group)
        trained: list[WeightedCompletion | None] = []
        for completion, weight, entropy_weight in zip(group.completions, group.weights, bonus, strict=True):
            one = None
            if completion.token_ids and (weight or entropy_weight):
                one = WeightedCompletion(
                    completion.token_ids,
                    completion.logprobs,
                    weight,
                    entropy_weight=entropy_weight,
                    json_schema=completion.json_schema,
                )
            trained.append(one)
        rows += rows_of(group, trained)
    return rows


def unweighted_row(group: Group) -> PromptRow:
    """Return a row with all non-empty completions of a group, with weight 0."""
    completions: list[WeightedCompletion] = []
    for one in group.completions:
        if one.token_ids:
            completions.append(WeightedCompletion(one.token_ids, one.logprobs, 0.0, json_schema=one.json_schema))
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
        self._max_tokens = max_tokens
        self._layout = layout
        self._ranks = ranks
        self._window = ranks.size * max_tokens
        if layout == "padded":
            self._window *= WINDOW
        self._pending: list[PromptRow] = []
        """Rows of the window."""
        self._size = 0
        """Tokens of the window."""

    def add(self, rows: Sequence[PromptRow]) -> list[MicroBatch]:
        """Add rows, and return the micro-batches that are complete."""
        complete = []
        for window in self._windows(rows):
            complete += self._split(window)
        return complete

    def flush(self) -> list[MicroBatch]:
        """Return the micro-batches of the remaining rows; the next row starts a new window."""
        return self._split(self._take_window())

    def per_row(self, rows: Sequence[PromptRow]) -> list[MicroBatch]:
        """Return micro-batches of a single row each, so that a row's result is bit-identical whatever the others."""
        of_ranks = []
        for share in distribute_rows(rows, self._ranks.size):
            parts: list[list[PromptRow]] = []
            for row in share:
                windows = [*self._windows([row]), self._take_window()]  # the last one ends with the row
                for window in windows:
                    parts += self._split_rows(window)
            of_ranks.append(parts)
        return self._lay_out(of_ranks)

    def _windows(self, rows: Sequence[PromptRow]) -> Iterator[list[PromptRow]]:
        """Yield full windows; in the padded layout their rows have one completion."""
        packed = self._layout == "packed"
        largest_row = 0  # of one completion
        if packed:
            largest_row = self._max_tokens
        for row in rows:
            for part in split_row(row, largest_row):
                if packed and self._joins(part):
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
                self._pending[number] = joined
                self._size = size
                return True
        return False

    def _take_window(self) -> list[PromptRow]:
        """Return the rows of the window, and start a new one."""
        window = self._pending
        self._pending = []
        self._size = 0
        return window

    def _split(self, window: list[PromptRow]) -> list[MicroBatch]:
        """Return this rank's micro-batches of a window."""
        rows = split_for_ranks(window, self._ranks.size)
        shares = distribute_rows(rows, self._ranks.size)
        return self._lay_out([self._split_rows(share) for share in shares])

    def _split_rows(self, rows: Sequence[PromptRow]) -> list[list[PromptRow]]:
        """Return the rows of each micro-batch of one rank."""

        def is_full_sequence(part: list[PromptRow]) -> bool:
            return sum(row.size for row in part) > self._max_tokens

        def is_full_rectangle(part: list[PromptRow]) -> bool:
            return len(part) * part[-1].size > self._max_tokens  # the last row is the longest

        if self._layout == "packed":
            return list(split_if_full(rows, is_full_sequence))
        by_length = sorted(rows, key=lambda row: row.size)
        return list(split_if_full(by_length, is_full_rectangle))

    def _lay_out(self, of_ranks: Sequence[Sequence[list[PromptRow]]]) -> list[MicroBatch]:
        """Return this rank's micro-batches, given the rows of all ranks."""
        lay_out = LAYOUTS[self._layout]
        mine = [lay_out(rows) for rows in of_ranks[self._ranks.rank]]
        # All ranks compute equally often, because a forward pass is a collective call.
        missing = max(map(len, of_ranks)) - len(mine)
        return mine + [idle_micro_batch(self._layout)] * missing


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
        first = PromptRow(row.prompt_ids, row.completions[:middle])
        second = PromptRow(row.prompt_ids, row.completions[middle:])
        parts[largest : largest + 1] = [first, second]
    return parts


def distribute_rows(rows: Sequence[PromptRow], ranks: int) -> list[list[PromptRow]]:
    """Distribute rows over ranks, largest first, each to the rank with the fewest tokens; keep their order."""
    shares: list[list[int]] = [[] for _ in range(ranks)]
    tokens = [0] * ranks
    largest_first = sorted(range(len(rows)), key=lambda number: -rows[number].size)
    for number in largest_first:
        rank = tokens.index(min(tokens))
        tokens[rank] += rows[number].size
        shares[rank].append(number)
    distributed = []
    for share in shares:
        distributed.append([rows[number] for number in sorted(share)])
    return distributed


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
    room = max_tokens - len(row.prompt_ids)

    def is_full(part: list[WeightedCompletion]) -> bool:
        return sum(len(completion.token_ids) for completion in part) > room

    for part in split_if_full(row.completions, is_full):
        yield PromptRow(row.prompt_ids, tuple(part))


def pack(rows: Sequence[PromptRow]) -> MicroBatch:
    """Return the rows as one packed sequence."""
    input_ids: list[int] = []
    position_ids: list[int] = []
    columns: list[int] = []
    groups = []
    completions: list[WeightedCompletion] = []
    for row in rows:
        begin = len(input_ids)
        input_ids += row.prompt_ids
        position_ids += range(len(row.prompt_ids))
        lengths: list[int] = []  # of the completions outside of the prompt
        starts: list[int] = []
        for number, completion in enumerate(row.completions):
            start = row.start(number)
            size = len(completion.token_ids)
            before = begin + start - 1  # the column whose logits predict the first token
            if row.contains(number):
                columns += range(before, before + size)
                continue
            first = len(input_ids)
            columns += [before, *range(first, first + size - 1)]
            position_ids += range(start, start + size)
            input_ids += completion.token_ids
            lengths.append(size)
            starts.append(start)
        groups.append(PackedGroup.of(len(row.prompt_ids), lengths, starts))
        completions += row.completions
    return MicroBatch(
        input_ids=torch.tensor([input_ids]),
        columns=torch.tensor(columns),
        **_tokens_of(completions),
        position_ids=torch.tensor([position_ids]),
        groups=PackedGroups(groups),
    )


def pad(rows: Sequence[PromptRow]) -> MicroBatch:
    """Return rows of one completion each as a rectangle, without the last token, which predicts nothing."""
    first = min(len(row.prompt_ids) for row in rows) - 1  # the first column that predicts a token
    width = max(row.size for row in rows) - 1
    input_ids = torch.full((len(rows), width), PADDING)
    real = torch.zeros((len(rows), width - first), dtype=torch.bool)
    completions = []
    for number, row in enumerate(rows):
        (completion,) = row.completions
        completions.append(completion)
        token_ids = torch.tensor(row.prompt_ids + completion.token_ids)
        input_ids[number, : len(token_ids) - 1] = token_ids[:-1]
        begin = len(row.prompt_ids) - 1 - first
        real[number, begin : begin + len(completion.token_ids)] = True
    per_token = _tokens_of(completions)
    fill = {"tokens": NO_TOKEN, "owners": len(rows)}
    for name, values in per_token.items():
        if isinstance(values, torch.Tensor):
            rectangle = torch.full(real.shape, fill.get(name, 0), dtype=values.dtype)
            rectangle[real] = values
            per_token[name] = rectangle.flatten()
    return MicroBatch(input_ids=input_ids, columns=torch.arange(first, width), **per_token)


LAYOUTS: dict[Layout, Callable[[Sequence[PromptRow]], MicroBatch]] = {"packed": pack, "padded": pad}


def idle_micro_batch(layout: Layout) -> MicroBatch:
    """Return a sequence without predicted tokens and thus a zero gradient, for a rank without rows."""
    row = PromptRow((PADDING,), (WeightedCompletion((PADDING,), (0.0,), 0.0),))
    batch = LAYOUTS[layout]([row])
    return replace(batch, tokens=torch.full_like(batch.tokens, NO_TOKEN), completions=())


def _tokens_of(completions: Sequence[WeightedCompletion]) -> dict[str, Any]:
    """Return the per-token fields of a micro-batch for these completions alone, one after another."""
    lengths = torch.tensor([len(completion.token_ids) for completion in completions])

    def per_completion(name: str) -> torch.Tensor:
        values = [getattr(completion, name) for completion in completions]
        return torch.tensor(values).repeat_interleave(lengths)

    def per_token(name: str) -> torch.Tensor | None:
        values = [getattr(completion, name) for completion in completions]
        if None in values:
            return None
        return torch.tensor(list(chain.from_iterable(values)))

    return {
        "tokens": per_token("token_ids"),
        "behaviour_logprobs": per_token("behaviour_logprobs"),
        "weights": per_completion("weight"),
        "kl_weights": per_completion("kl_weight"),
        "entropy_weights": per_completion("entropy_weight"),
        "owners": torch.arange(len(completions)).repeat_interleave(lengths),
        "completions": tuple(completions),
        "old_logprobs": per_token("old_logprobs"),
        "reference_logprobs": per_token("reference_logprobs"),
    }
