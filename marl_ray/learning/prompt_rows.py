"""Rows of training data: a prompt with its trained completions, from which micro-batches are laid out.

The turns of a conversation are one row: the prompt of its last turn contains the earlier prompts and the answers that
were continued.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from marl_ray.core.batch import Group


@dataclass(frozen=True, slots=True)
class WeightedCompletion:
    """A completion, with the factors in the loss of its summed log-probability, reference KL and entropy.

    old_logprobs: the policy's log-probabilities before the batch's first optimizer step; None in the first mini-batch,
    and for losses that require neither `several_optimizer_steps` nor `old_logprobs`. reference_logprobs: the reference
    policy's, if there is one. json_schema: the schema that constrained the sampler, as JSON text, or empty.
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
        size = len(self.prompt_ids)
        for number, completion in enumerate(self.completions):
            if not self.contains(number):
                size += len(completion.token_ids)
        return size

    def start(self, number: int) -> int:
        """Return the number of prompt tokens before a completion."""
        return self.starts[number] if self.starts else len(self.prompt_ids)

    def contains(self, number: int) -> bool:
        """Return whether the prompt contains the tokens of a completion, at the completion's place."""
        if not self.starts:
            return False
        token_ids = self.completions[number].token_ids
        return _has_at(self.prompt_ids, self.starts[number], token_ids)

    def extended_by(self, later: PromptRow) -> PromptRow | None:
        """Return both rows as one if the prompt of `later` continues one of this row's answers; otherwise None."""
        prompt = later.prompt_ids
        end = len(self.prompt_ids)
        if later.starts or len(prompt) <= end or prompt[:end] != self.prompt_ids:
            return None
        starts = [self.start(number) for number in range(len(self.completions))]
        answers = [c.token_ids for c, start in zip(self.completions, starts, strict=True) if start == end]
        if not any(_has_at(prompt, end, token_ids) for token_ids in answers):
            return None
        starts += [len(prompt)] * len(later.completions)
        return PromptRow(prompt, self.completions + later.completions, tuple(starts))


def _has_at(prompt_ids: tuple[int, ...], start: int, token_ids: tuple[int, ...]) -> bool:
    return prompt_ids[start : start + len(token_ids)] == token_ids


def rows_of(group: Group, trained: Sequence[WeightedCompletion | None]) -> list[PromptRow]:
    """Return the rows of a group's trained completions (None: not trained), without empty rows.

    The calls with equal prompts are one row, except a call whose answer another call's prompt continues: this call is a
    row of its own, which the micro-batcher joins with its continuation.
    """
    calls: list[tuple[tuple[int, ...], WeightedCompletion]] = []
    for prompt, completion in zip(group.prompts, trained, strict=True):
        if completion is not None:
            calls.append((prompt, completion))
    continued = _continued(calls)
    parts: list[tuple[tuple[int, ...], list[WeightedCompletion]]] = []
    """Prompt and completions of each row."""
    shared: dict[tuple[int, ...], list[WeightedCompletion]] = {}
    """Completions of the row that calls with this prompt share."""
    for prompt, completion in calls:
        if prompt in shared and prompt + completion.token_ids not in continued:
            shared[prompt].append(completion)
            continue
        own = [completion]
        parts.append((prompt, own))
        if prompt + completion.token_ids not in continued:
            shared[prompt] = own
    return [PromptRow(prompt, tuple(completions)) for prompt, completions in parts]


def _continued(calls: Sequence[tuple[tuple[int, ...], WeightedCompletion]]) -> set[tuple[int, ...]]:
    """Return prompt and answer of each call that another call's prompt continues, of prompts with several calls."""
    counts = Counter(prompt for prompt, _ in calls)
    ends: set[tuple[int, ...]] = set()
    for prompt, completion in calls:
        if counts[prompt] > 1:
            ends.add(prompt + completion.token_ids)
    lengths = {len(ids) for ids in ends}
    # A lookup per prompt and length, where comparing every pair would take calls x calls.
    found: set[tuple[int, ...]] = set()
    for prompt in counts:
        for length in lengths:
            if length < len(prompt) and prompt[:length] in ends:
                found.add(prompt[:length])
    return found
