"""The study toy-second-turn: valid arms of equal size, and the choice between two first answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.learning.__main__ import RESULTS, current
from benchmarks.learning.catalogue import STUDIES
from benchmarks.learning.primary import primary_table
from benchmarks.learning.report import table
from benchmarks.learning.second_turn_study import COMPARISONS, SECOND_TURN, _chances
from marl_ray.config.budget import training_budget
from tests.factories import study_config

PAGE = Path(__file__).resolve().parents[2] / "docs" / "results" / "second_turn.md"


@pytest.mark.parametrize("name", SECOND_TURN.arms)
def test_an_arm_is_a_config_of_as_many_answers_as_the_joint_one(name: str) -> None:
    config = study_config(SECOND_TURN, name)
    budget = training_budget(config, 214)
    turns = 2 if name == "program" else 1  # a run of the program has up to two answers
    assert (budget.total_steps, turns * budget.joint_samples_per_step) == (40, 128)
    assert config.training.eval_handoff == "random"


def test_a_second_first_answer_replaces_one_that_fails_the_visible_test() -> None:
    def action(visible: str, tests: float) -> dict[str, object]:
        return {"levels": {"tests": tests}, "report": {"tests": [{"status": visible}, {"status": "pass"}]}}

    answers = [action("pass", 1.0), action("pass", 0.5), action("fail", 0.5)]
    assert _chances(answers) == [1.0, 0.0, 0.5]


def test_the_family_is_of_existing_arms_and_the_page_has_its_results() -> None:
    assert STUDIES["toy-second-turn"] is SECOND_TURN
    assert {arm for one in COMPARISONS for arm in (one.arm, one.other)} <= SECOND_TURN.arms.keys()
    lines = current(SECOND_TURN, RESULTS)
    page = PAGE.read_text(encoding="utf-8")
    assert not lines or table(lines, SECOND_TURN) in page
    assert not lines or primary_table(lines, COMPARISONS) in page
