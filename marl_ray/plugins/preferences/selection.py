"""Rejection sampling: the answers that a warm start trains on, and the prompts that it holds out.

Candidates are groups (`marl_ray.core.batch.Group`): answers to one prompt with their returns. The answers with high
returns become demonstrations (Yuan et al., 2023, "Scaling relationship on learning mathematical reasoning with large
language models").
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TypeVar

from marl_ray.core.batch import Group
from marl_ray.core.episode import Completion, sibling_calls
from marl_ray.core.errors import UserError
from marl_ray.core.random_streams import random_stream

E = TypeVar("E")
P = TypeVar("P", str, tuple[int, ...])
"""A prompt, as text or token ids."""


@dataclass(frozen=True, slots=True)
class AnswerSelection:
    """The conditions on an answer: a return of at least `min_return`, and among the `best` of its group with a return
    above the group's mean. None: no condition. Groups whose returns are all equal have no best answer."""

    min_return: float | None
    best: int | None

    def accepted(self, returns: Sequence[float]) -> list[int]:
        """Return the indices of the accepted answers of a group, in order.

        Example:
            >>> AnswerSelection(None, 1).accepted([0.0, 2.0, 2.0]), AnswerSelection(2.0, None).accepted([0.0, 2.0, 2.0])
            ([1], [1, 2])
        """
        indices = list(range(len(returns)))
        if returns and self.best is not None:
            mean = fmean(returns)
            above = [index for index in indices if returns[index] > mean]
            above.sort(key=lambda index: -returns[index])  # stable: the first of equal returns is taken
            indices = sorted(above[: self.best])
        if self.min_return is None:
            return indices
        return [index for index in indices if returns[index] >= self.min_return]

    def describe(self, returns: Sequence[float]) -> str:
        """Return the reason why no answer was accepted, from the returns of all answers."""
        highest = f"the highest return of {len(returns)} answers is {max(returns):g}"
        if self.min_return is not None and max(returns) < self.min_return:
            return f"{highest}: lower --min-return {self.min_return:g}"
        return f"no group has answers with different returns, and {highest}: give --min-return instead of --best"


def demonstrations(groups: Sequence[Group], selection: AnswerSelection, whose: str) -> list[Group]:
    """Return one group per accepted answer, with return 1. Equal answers to equal prompts count once.

    Raises UserError, in the name of `whose`, if no answer is accepted.
    """
    distinct: dict[tuple[tuple[int, ...], tuple[int, ...]], Group] = {}
    for group in groups:
        for index in selection.accepted(group.returns):
            call = group.calls[index]
            answer_ids = call.completion.token_ids
            if not answer_ids:
                continue  # there is no token to learn
            answer = (call.prompt_ids, answer_ids)
            distinct.setdefault(answer, demonstration(call.prompt_ids, call.completion))
    if distinct:
        return list(distinct.values())
    returns: list[float] = []
    for group in groups:
        returns += group.returns
    reason = selection.describe(returns) if returns else "no answer"
    raise UserError(f"{whose} has no demonstration: {reason}")


def demonstration(prompt_ids: tuple[int, ...], completion: Completion) -> Group:
    """Return a group of one answer with return 1, without a weight yet."""
    return Group(0, sibling_calls(prompt_ids, [completion]), returns=(1.0,))


def hold_out(
    examples: Sequence[E], prompts: Sequence[P], share: float, seed: int, whose: str
) -> tuple[list[E], list[E]]:
    """Return the examples to train on and the held-out ones: all examples of a random `share` of the distinct prompts,
    at least one prompt and not all. `prompts` has the prompt of each example.

    Raises UserError if all examples have one prompt.
    """
    distinct = sorted(set(prompts))
    if len(distinct) < 2:
        raise UserError(f"{whose} has answers to one prompt only, and one is held out: give more prompts")
    wanted = max(1, round(share * len(distinct)))
    count = min(wanted, len(distinct) - 1)
    held_prompts = set(random_stream(seed, "held_out", whose).sample(distinct, count))
    trained = []
    held_out = []
    for example, prompt in zip(examples, prompts, strict=True):
        if prompt in held_prompts:
            held_out.append(example)
        else:
            trained.append(example)
    return trained, held_out


def merged_by_prompt(groups: Iterable[Group]) -> list[Group]:
    """Return one group per prompt, with the answers of all groups with this prompt."""
    merged: dict[tuple[int, ...], Group] = {}
    for group in groups:
        before = merged.get(group.prompt_ids)
        if before is not None:
            completions = before.completions + group.completions
            calls = sibling_calls(group.prompt_ids, completions, group.agent)
            group = Group(before.turn, calls, before.returns + group.returns)
        merged[group.prompt_ids] = group
    return list(merged.values())
