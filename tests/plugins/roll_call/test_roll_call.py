"""Roll call: private rows, the team's reward and the agents' own, and the worth of a writer."""

from __future__ import annotations

import pytest

from marl_ray.core.episode import Outcome, Task
from marl_ray.core.errors import UserError
from marl_ray.data.loading import load_rows, load_tasks
from marl_ray.plugins.roll_call.environment import RollCall
from marl_ray.plugins.roll_call.options import RollCallConfig
from marl_ray.plugins.roll_call.rows import ROLL_CALL
from marl_ray.testing import check_environment
from tools.toy.make_roll_call import SPLITS, call_rows

TASK = Task("t", "Copy your row.", {"rows": ("ab", "cd", "aa")})


def outcome(answers: list[str], **options: object) -> Outcome:
    environment = RollCall(len(answers), RollCallConfig(**options))  # type: ignore[arg-type]
    return environment.outcome(environment.attempt(TASK, answers, last=True), None)


@pytest.mark.parametrize(
    ("answers", "mean", "worst", "own"),
    [
        (["a b", "c d"], 2.0, 2.0, (2.0, 2.0)),
        (["A b c", "c d"], 2.0, 2.0, (2.0, 2.0)),  # case and further words do not count
        (["a a", "c d"], 0.75, 0.5, (0.5, 2.0)),
        (["b a", "c"], 0.25, 0.0, (0.0, 0.5)),
        (["ab", ""], 0.0, 0.0, (0.0, 0.0)),
    ],
)
def test_rewards(answers: list[str], mean: float, worst: float, own: tuple[float, ...]) -> None:
    assert outcome(answers).reward == mean
    assert outcome(answers).rewards == ()
    assert outcome(answers, team="worst").reward == worst
    found = outcome(answers, own=True)
    assert (found.reward, found.rewards) == (mean, own)


def test_without_a_writer_the_worst_share_is_zero() -> None:
    assert outcome(["a b", ""]).reward == 0.5
    assert outcome(["a b", ""], team="worst").reward == 0.0


def test_a_writer_reads_its_own_row_only() -> None:
    first, second = RollCall(2).first_prompts(TASK)
    assert first == "Copy your row. writer 1: a b\n"
    assert second == "Copy your row. writer 2: c d\n"


def test_feedback_is_about_the_own_row_or_about_all() -> None:
    environment = RollCall(2)
    attempt = environment.attempt(TASK, ["a a", "c d"], last=False)
    found = environment.outcome(attempt, None)
    assert environment.feedback(attempt, found, "level_feedback", 0) == ["right cells of your row: 50%"]
    assert environment.feedback(attempt, found, "level_passed", 0) == ["right cells of all writers: 75%"]
    assert environment.feedback(attempt, found, "passed", 0) == ["Not all levels passed"]


@pytest.mark.parametrize("agents", [1, 2, 16])
def test_the_bundled_rows_are_tasks(agents: int) -> None:
    check_environment(RollCall(agents), load_tasks("bundled:roll-call", "eval[:4]"), [["a b"] * agents, ["a"] * agents])


def test_the_bundled_rows_are_reproducible() -> None:
    assert [row for split in SPLITS for row in load_rows("bundled:roll-call", split)] == call_rows()


def test_too_many_writers_and_uneven_rows_are_rejected() -> None:
    with pytest.raises(UserError, match="task t has 3 rows: set num_agents to at most 3"):
        RollCall(4).check_task(TASK)
    for rows in ([], ["ab", "a"], ["a1"]):
        with pytest.raises(UserError, match="its field rows should be a list of rows of letters, all of one length"):
            ROLL_CALL.task({"rows": rows}, 0)
