"""Letter grids: reading, marks, rewards, feedback, private rows, and the bound of a single agent."""

from __future__ import annotations

import itertools

import pytest

from marl_ray.core.episode import Task
from marl_ray.core.errors import UserError
from marl_ray.data.loading import load_rows, load_tasks
from marl_ray.plugins.grid.attempt import FilledGrid, read_rows
from marl_ray.plugins.grid.environment import LetterGrid, PrivateGrid, single_agent_bound
from marl_ray.plugins.grid.rows import GRID
from marl_ray.testing import check_environment

TASK = Task("t", "Fill.", {"target": ("abc", "aab"), "letters": "abc"})


@pytest.mark.parametrize(
    ("response", "rows"),
    [
        ("a b c\nc b a", ["abc", "cba"]),
        ("A, b; c\n\n  c b", ["abc", "cb-"]),
        ("abc\na1 b c", ["bc-", "---"]),  # letters beside other letters or digits do not stand alone
        ("row: a b c a b\nd e\nb", ["abc", "b--"]),  # letters beyond the width, and lines without letters, are ignored
        ("", ["---", "---"]),
    ],
)
def test_rows_are_read_from_lines_with_letters(response: str, rows: list[str]) -> None:
    assert read_rows(response, 2, 3, "abc") == rows


@pytest.mark.parametrize(
    ("rows", "marks"),
    [
        (("abc", "aab"), "RRR RRR"),
        (("bac", "aab"), "EER RRR"),
        (("bbb", "bbb"), "WRW WWR"),  # both b of the target are found, so no other b belongs anywhere
        (("aaa", "bcc"), "REE EEW"),  # other cells lack two a, two b and one c: the second c belongs nowhere
        (("---", "---"), "WWW WWW"),
    ],
)
def test_marks(rows: tuple[str, str], marks: str) -> None:
    found = [[mark[0].upper() for mark in row] for row in FilledGrid((), TASK.fields["target"], rows).marks]
    assert " ".join(map("".join, found)) == marks


@pytest.mark.parametrize(
    ("answers", "cells", "complete"),
    [
        (("a b c", "a a b"), 1.0, 1.0),
        (("a b c", "a b b"), 5 / 6, 0.0),
        (("a b c", ""), 0.5, 0.0),
        (("c a b", "b b a"), 0.0, 0.0),
        (("a b c\na a b",), 1.0, 1.0),
    ],
)
def test_rewards(answers: tuple[str, ...], cells: float, complete: float) -> None:
    environment = LetterGrid(len(answers))
    outcome = environment.outcome(environment.attempt(TASK, answers, last=True), None)
    assert dict(outcome.levels) == pytest.approx({"cells": cells, "complete": complete})
    assert outcome.reward == pytest.approx(cells + complete)
    assert (outcome.metrics["cells_right"], outcome.metrics["all_passed"]) == (pytest.approx(cells), complete)


def test_feedback_marks_the_whole_grid_for_every_agent() -> None:
    environment = LetterGrid(2)
    attempt = environment.attempt(TASK, ["a c b", "b"], last=False)
    outcome = environment.outcome(attempt, None)
    lines = ["row 1: a right, c elsewhere, b elsewhere", "row 2: b elsewhere, - wrong, - wrong"]
    assert [environment.feedback(attempt, outcome, "level_feedback", agent) for agent in (0, 1)] == [lines, lines]
    assert environment.feedback(attempt, outcome, "level_passed", 0) == ["right: 1 of 6 letters"]
    assert environment.feedback(attempt, outcome, "passed", 0) == ["Not all levels passed"]
    assert list(attempt.answers) == ["a c b", "b - -"]
    assert environment.revisions(TASK) == ["Write row 1 again.", "Write row 2 again."]


def test_no_prompt_of_a_secret_grid_depends_on_the_target() -> None:
    tasks = load_tasks("bundled:grid", "eval")
    for agents in (1, 2):
        assert len({tuple(LetterGrid(agents).first_prompts(task)) for task in tasks}) == 1


def test_each_agent_of_a_private_grid_knows_the_other_agents_rows_only() -> None:
    first, second = PrivateGrid(2).first_prompts(TASK)
    assert "Row 2 should be: a a b\nWrite row 1." in first
    assert "a b c" not in first.replace("a, b, c", "")
    assert "Row 1 should be: a b c\nWrite row 2." in second
    (alone,) = PrivateGrid(1).first_prompts(TASK)
    assert "Row 1 should be: a b c\nWrite rows 1 to 2." in alone
    assert "a a b" not in alone
    environment = PrivateGrid(2)
    attempt = environment.attempt(TASK, ["a a b", "a b c"], last=False)
    outcome = environment.outcome(attempt, None)
    assert environment.feedback(attempt, outcome, "level_feedback", 1) == ["row 1: a a b", "row 2: a b c"]


def test_the_bound_of_a_single_agent_is_the_mean_reward_of_its_best_answer_over_all_targets() -> None:
    environment = PrivateGrid(1)
    rewards = []
    for letters in itertools.product("ab", repeat=4):
        target = ("".join(letters[:2]), "".join(letters[2:]))
        task = Task("t", "Fill.", {"target": target, "letters": "ab"})
        attempt = environment.attempt(task, [f"{' '.join(target[0])}\na a"], last=True)
        rewards.append(environment.outcome(attempt, None).reward)
    assert sum(rewards) / len(rewards) == pytest.approx(single_agent_bound(2, 2, 2)) == pytest.approx(1.0)


@pytest.mark.parametrize("environment", [LetterGrid, PrivateGrid])
@pytest.mark.parametrize("agents", [1, 2])
def test_the_bundled_grids_are_tasks(environment: type[LetterGrid], agents: int) -> None:
    tasks = load_tasks("bundled:grid", "eval[:4]")
    check_environment(environment(agents), tasks, [["a b c\nb b b"] * agents, ["a"] * agents])
    assert len(load_rows("bundled:grid", "train")) == 192


def test_rows_that_cannot_be_divided_are_rejected() -> None:
    with pytest.raises(UserError, match="task t: 2 rows cannot be divided equally between 3 agents"):
        LetterGrid(3).check_task(TASK)
    with pytest.raises(UserError, match="a single agent knows half of the rows, of which there is an odd number"):
        PrivateGrid(1).check_task(Task("t", "Fill.", {"target": ("ab",), "letters": "ab"}))


@pytest.mark.parametrize("target", [["ab", "a"], ["aB"], ["a1"]])
def test_targets_that_are_no_grids_are_rejected(target: list[str]) -> None:
    with pytest.raises(UserError, match="the rows of a target need equal lengths and lower-case letters"):
        GRID.task({"target": target}, 0)
    with pytest.raises(UserError, match="lower-case letters of `letters`"):
        GRID.task({"target": ["ab"], "letters": "ac"}, 0)
