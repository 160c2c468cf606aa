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
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

import torch

from marl_ray.core.batch import Group
from marl_ray.learning.attention import PackedGroup
from marl_ray.learning.logprobs import NO_TOKEN
from marl_ray.learning.ranks import SINGLE_RANK, RankGroup

Layout = Literal["packed", "padded"]
PADDING = 0
"""Any id: what follows a sequence changes nothing in it."""
WINDOW = 8
"""Micro-batches whose tokens are sorted together where completions are padded."""


@dataclass(frozen=True, slots=True)
class WeightedCompletion:
    """One completion and the factors, in the loss, of its summed log-probability and of its summed KL divergence from
    the reference policy. `old_logprobs` are those of the policy before the batch's first optimizer step, where they are
    not what the policy says now; `reference_logprobs` those of the reference policy, if there is one."""

    token_ids: tuple[int, ...]
    behaviour_logprobs: tuple[float, ...]
    weight: float
    kl_weight: float = 0.0
    old_logprobs: tuple[float, ...] | None = None
    reference_logprobs: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True)
class PromptRow:
    """One prompt and the completions of it that have a gradient."""

    prompt_ids: tuple[int, ...]
    completions: tuple[WeightedCompletion, ...]

    @property
    def size(self) -> int:
        """Tokens of the prompt and all completions."""
        return len(self.prompt_ids) + sum(len(c.token_ids) for c in self.completions)


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """B sequences of L tokens (packed: one), and what their logits at C columns predict.

    input_ids: [B, L]; columns: [C]; tokens: [B * C], the completion token predicted there, or NO_TOKEN;
    behaviour_logprobs, weights, kl_weights: [B * C], the token's log-probability and the factors of its completion,
    else 0; owners: [B * C], the token's completion among `completions`, else their number; old_logprobs,
    reference_logprobs: [B * C], or None where completions have none. The tokens of `completions` are in their order.
    Packed ones have position_ids [1, L], and `groups`, where each row lies; padded ones have neither.
    """

    input_ids: torch.Tensor
    columns: torch.Tensor
    tokens: torch.Tensor
    behaviour_logprobs: torch.Tensor
    weights: torch.Tensor
    kl_weights: torch.Tensor
    owners: torch.Tensor
    completions: tuple[WeightedCompletion, ...]
    old_logprobs: torch.Tensor | None = None
    reference_logprobs: torch.Tensor | None = None
    position_ids: torch.Tensor | None = None
    groups: tuple[PackedGroup, ...] = ()

    def to(self, device: torch.device) -> MicroBatch:
        """The same on `device`."""
        tensors = {
            f.name: getattr(self, f.name) for f in fields(self) if isinstance(getattr(self, f.name), torch.Tensor)
        }
        moved = {name: tensor.to(device) for name, tensor in tensors.items()}
        return replace(self, **moved, groups=tuple(group.to(device) for group in self.groups))


def trainable_rows(groups: Sequence[Group]) -> list[PromptRow]:
    """The groups without what has no gradient: completions of weight 0, and groups of nothing else.

    The loss is minus the sum over completions of weight * sum_k log pi(token_k | prompt, tokens before k).
    """
    rows = []
    for group in groups:
        completions = tuple(
            WeightedCompletion(completion.token_ids, completion.logprobs, weight)
            for completion, weight in zip(group.completions, group.weights, strict=True)
            if weight != 0 and completion.token_ids
        )
        if completions:
            rows.append(PromptRow(group.prompt_ids, completions))
    return rows


def unweighted_row(group: Group) -> PromptRow:
    """The group with all its completions that have tokens, weighed 0, for whoever asks what a model says of them."""
    there = (c for c in group.completions if c.token_ids)
    return PromptRow(group.prompt_ids, tuple(WeightedCompletion(c.token_ids, c.logprobs, 0.0) for c in there))


class MicroBatcher:
    """Cuts rows, as they come, into micro-batches of at most `max_tokens` tokens, padding counted (or one completion).

    Where it cuts follows from the order of the rows alone, not from the portions that they come in: what fills no
    window is kept until more comes, or until `rest` asks for it. Packed, a window is one micro-batch. Padded, it is as
    many tokens as WINDOW micro-batches, laid out from the shortest completion to the longest, so that there is little
    to fill up. The price of not waiting for all rows, and sorting those, is one micro-batch a window that is not full,
    and rectangles of lengths a little less alike.

    Several ranks have a cutter each, which hears of all rows and gives its own rank's micro-batches. A window is so
    many times as large, and its rows are shared out by tokens. All ranks get as many micro-batches, since they compute
    together; some of those who have less to do are `idle`.
    """

    def __init__(self, max_tokens: int, layout: Layout, ranks: RankGroup = SINGLE_RANK) -> None:
        self._max_tokens, self._layout, self._ranks = max_tokens, layout, ranks
        self._window = ranks.size * (max_tokens if layout == "packed" else WINDOW * max_tokens)
        self._pending: list[PromptRow] = []
        self._size = 0

    def add(self, rows: Sequence[PromptRow]) -> list[MicroBatch]:
        """The micro-batches that are complete now."""
        return [micro_batch for window in self._windows(rows) for micro_batch in self._cut(window)]

    def flush(self) -> list[MicroBatch]:
        """What was kept; the next row begins a window."""
        return self._cut(self._taken())

    def per_row(self, rows: Sequence[PromptRow]) -> list[MicroBatch]:
        """Micro-batches none of which has completions of two rows: what is computed of one does not depend, in any
        bit, on the others. Each rank has whole rows."""
        of_ranks = []
        for share in share_out(rows, self._ranks.size):
            of_one: list[list[PromptRow]] = []
            for row in share:
                for window in (*self._windows([row]), self._taken()):
                    of_one += self._fitting(window)
            of_ranks.append(of_one)
        return self._laid_out(of_ranks)

    def _windows(self, rows: Sequence[PromptRow]) -> Iterator[list[PromptRow]]:
        """Those that are full now; their rows have one completion where completions are padded."""
        for row in rows:
            for part in split_row(row, self._max_tokens) if self._layout == "packed" else single_rows(row):
                if self._pending and self._size + part.size > self._window:
                    yield self._taken()
                self._pending.append(part)
                self._size += part.size

    def _taken(self) -> list[PromptRow]:
        pending, self._pending, self._size = self._pending, [], 0
        return pending

    def _cut(self, window: list[PromptRow]) -> list[MicroBatch]:
        return self._laid_out([self._fitting(share) for share in share_out(window, self._ranks.size)])

    def _fitting(self, rows: Sequence[PromptRow]) -> list[list[PromptRow]]:
        """The rows of each micro-batch."""
        cut = rectangles if self._layout == "padded" else consecutive
        return list(cut(rows, self._max_tokens))

    def _laid_out(self, of_ranks: Sequence[Sequence[list[PromptRow]]]) -> list[MicroBatch]:
        """This rank's micro-batches, of the rows of all."""
        lay_out = pad if self._layout == "padded" else pack
        own = [lay_out(rows) for rows in of_ranks[self._ranks.rank]]
        return own + [idle(self._layout)] * (max(map(len, of_ranks)) - len(own))


def share_out(rows: Sequence[PromptRow], ranks: int) -> list[list[PromptRow]]:
    """The rows of each rank, in their order: from the largest on, each goes to the rank that has the fewest tokens."""
    shares: list[list[int]] = [[] for _ in range(ranks)]
    tokens = [0] * ranks
    for number in sorted(range(len(rows)), key=lambda number: -rows[number].size):
        rank = tokens.index(min(tokens))
        tokens[rank] += rows[number].size
        shares[rank].append(number)
    return [[rows[number] for number in sorted(share)] for share in shares]


def consecutive(rows: Sequence[PromptRow], max_tokens: int) -> Iterator[list[PromptRow]]:
    """Rows in their order, in parts that fit."""
    pending: list[PromptRow] = []
    size = 0
    for row in rows:
        if pending and size + row.size > max_tokens:
            yield pending
            pending, size = [], 0
        pending.append(row)
        size += row.size
    if pending:
        yield pending


def rectangles(rows: Sequence[PromptRow], max_tokens: int) -> Iterator[list[PromptRow]]:
    """Rows of one completion each, from the shortest to the longest, in parts that fit when they are filled up."""
    pending: list[PromptRow] = []
    for row in sorted(rows, key=lambda row: row.size):
        if pending and (len(pending) + 1) * row.size > max_tokens:
            yield pending
            pending = []
        pending.append(row)
    if pending:
        yield pending


def single_rows(row: PromptRow) -> Iterator[PromptRow]:
    """The row in parts of one completion."""
    for completion in row.completions:
        yield PromptRow(row.prompt_ids, (completion,))


def split_row(row: PromptRow, max_tokens: int) -> Iterator[PromptRow]:
    """The row in parts that each fit, if their prompt and one completion do."""
    pending: list[WeightedCompletion] = []
    size = len(row.prompt_ids)
    for completion in row.completions:
        if pending and size + len(completion.token_ids) > max_tokens:
            yield PromptRow(row.prompt_ids, tuple(pending))
            pending, size = [], len(row.prompt_ids)
        pending.append(completion)
        size += len(completion.token_ids)
    yield PromptRow(row.prompt_ids, tuple(pending))


def pack(rows: Sequence[PromptRow]) -> MicroBatch:
    """The rows as one packed sequence."""
    input_ids: list[int] = []
    position_ids: list[int] = []
    columns: list[int] = []
    groups = []
    for row in rows:
        start, length = len(input_ids), len(row.prompt_ids)
        groups.append(PackedGroup.of(length, [len(c.token_ids) for c in row.completions]))
        input_ids += row.prompt_ids
        position_ids += range(length)
        for completion in row.completions:
            first, size = len(input_ids), len(completion.token_ids)
            columns += [start + length - 1, *range(first, first + size - 1)]
            position_ids += range(length, length + size)
            input_ids += completion.token_ids
    return MicroBatch(
        input_ids=torch.tensor([input_ids]),
        columns=torch.tensor(columns),
        **_tokens_of([completion for row in rows for completion in row.completions]),
        position_ids=torch.tensor([position_ids]),
        groups=tuple(groups),
    )


def pad(rows: Sequence[PromptRow]) -> MicroBatch:
    """Rows of one completion each as a rectangle. A completion's last token predicts nothing and is left out."""
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
    found = _tokens_of([completion for row in rows for completion in row.completions])
    nothing = {"tokens": NO_TOKEN, "owners": len(rows)}
    for name, values in found.items():
        if isinstance(values, torch.Tensor):
            found[name] = torch.full(real.shape, nothing.get(name, 0), dtype=values.dtype)
            found[name][real] = values
            found[name] = found[name].flatten()
    return MicroBatch(input_ids=input_ids, columns=torch.arange(first, width), **found)


def idle(layout: Layout) -> MicroBatch:
    """A sequence in which nothing is predicted, so that its gradient is 0: for a rank that has nothing to do while
    others compute."""
    row = PromptRow((PADDING,), (WeightedCompletion((PADDING,), (0.0,), 0.0),))
    batch = pack([row]) if layout == "packed" else pad([row])
    return replace(batch, tokens=torch.full_like(batch.tokens, NO_TOKEN), completions=())


def _tokens_of(completions: Sequence[WeightedCompletion]) -> dict[str, Any]:
    """What a micro-batch says of tokens, of these alone, one completion after another."""

    def joined(values: list[tuple[float, ...] | None]) -> torch.Tensor | None:
        known = [of_one for of_one in values if of_one is not None]
        return torch.tensor([value for of_one in known for value in of_one]) if len(known) == len(values) else None

    lengths = torch.tensor([len(completion.token_ids) for completion in completions])
    return {
        "tokens": torch.tensor([token for completion in completions for token in completion.token_ids]),
        "behaviour_logprobs": joined([completion.behaviour_logprobs for completion in completions]),
        "weights": torch.tensor([completion.weight for completion in completions]).repeat_interleave(lengths),
        "kl_weights": torch.tensor([completion.kl_weight for completion in completions]).repeat_interleave(lengths),
        "owners": torch.arange(len(completions)).repeat_interleave(lengths),
        "completions": tuple(completions),
        "old_logprobs": joined([completion.old_logprobs for completion in completions]),
        "reference_logprobs": joined([completion.reference_logprobs for completion in completions]),
    }
