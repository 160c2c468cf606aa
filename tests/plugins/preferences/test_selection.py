"""The answers that a warm start trains on, and the prompts that it holds out."""

from __future__ import annotations

import pytest

from marl_ray.core.batch import Group
from marl_ray.core.episode import sibling_calls
from marl_ray.core.errors import UserError
from marl_ray.plugins.preferences.selection import AnswerSelection, demonstrations, hold_out, merged_by_prompt
from tests.factories import make_completion


def group(prompt: int, *returns: float) -> Group:
    """Return a group in which answer i has i + 1 tokens."""
    completions = tuple(make_completion("", tokens=i + 1) for i in range(len(returns)))
    return Group(0, sibling_calls((prompt,), completions), returns)


@pytest.mark.parametrize(
    ("least", "best", "returns", "accepted"),
    [
        (None, None, [0.0, 1.0], [0, 1]),
        (1.0, None, [0.0, 1.0, 2.0], [1, 2]),
        (None, 1, [0.0, 2.0, 1.0], [1]),
        (None, 2, [0.0, 2.0, 1.0, 3.0], [1, 3]),
        (None, 3, [0.0, 2.0, 0.0], [1]),
        (None, 1, [2.0, 2.0], []),
        (None, 1, [2.0], []),
        (1.5, 2, [0.0, 2.0, 1.0, 0.0], [1]),
    ],
)
def test_accepted_answers(least: float | None, best: int | None, returns: list[float], accepted: list[int]) -> None:
    assert AnswerSelection(least, best).accepted(returns) == accepted


def test_equal_answers_to_equal_prompts_count_once() -> None:
    found = demonstrations([group(1, 0.0, 1.0), group(1, 0.0, 1.0), group(2, 0.0, 1.0)], AnswerSelection(None, 1), "it")
    assert [(one.prompt_ids, len(one.completions[0].token_ids)) for one in found] == [((1,), 2), ((2,), 2)]
    assert all(one.returns == (1.0,) for one in found)


@pytest.mark.parametrize(
    ("selection", "message"),
    [
        (AnswerSelection(3.0, None), "the highest return of 2 answers is 1: lower --min-return 3"),
        (AnswerSelection(None, 1), "no group has answers with different returns"),
    ],
)
def test_no_accepted_answer_is_an_error(selection: AnswerSelection, message: str) -> None:
    with pytest.raises(UserError, match=f"agent 0 has no demonstration: .*{message}"):
        demonstrations([group(1, 1.0, 1.0)], selection, "agent 0")


def prompts_of(groups: list[Group]) -> list[tuple[int, ...]]:
    return [one.prompt_ids for one in groups]


def test_prompts_are_held_out_whole_and_the_same_ones_again() -> None:
    groups = [group(prompt, 1.0) for prompt in range(20) for _ in range(3)]
    trained, held_out = hold_out(groups, prompts_of(groups), 0.2, 7, "agent_0")
    assert len({one.prompt_ids for one in held_out}) == 4
    assert {one.prompt_ids for one in trained}.isdisjoint(one.prompt_ids for one in held_out)
    assert len(trained) + len(held_out) == 60
    assert hold_out(groups[::-1], prompts_of(groups[::-1]), 0.2, 7, "agent_0")[1] == held_out[::-1]


def test_at_least_one_prompt_is_held_out_and_one_is_left() -> None:
    trained, held_out = hold_out(["a", "b"], [(1,), (2,)], 0.01, 0, "agent_0")
    assert (len(trained), len(held_out)) == (1, 1)
    with pytest.raises(UserError, match="one prompt only"):
        hold_out(["a", "b"], [(1,), (1,)], 0.5, 0, "agent_0")


def test_answers_to_one_prompt_form_a_group() -> None:
    merged = merged_by_prompt([group(1, 1.0), group(2, 5.0), group(1, 3.0)])
    assert [(one.prompt_ids, one.returns) for one in merged] == [((1,), (1.0, 3.0)), ((2,), (5.0,))]
