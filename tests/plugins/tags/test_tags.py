"""Tags: words that count, rewards, positions, feedback, and the bundled texts."""

from __future__ import annotations

from collections import Counter

import pytest

from marl_ray.core.episode import Outcome, Task
from marl_ray.core.errors import UserError
from marl_ray.data.loading import load_rows, load_tasks
from marl_ray.plugins.tags.environment import Tagging, Tags
from marl_ray.plugins.tags.prompts import EXAMPLES
from marl_ray.plugins.tags.words import content_words, relative_positions
from marl_ray.testing import check_environment
from tests.factories import make_config

TASK = Task("t", "The ferry crew check ropes and radio, then the ferry leaves before sunrise.", {})
"""Words by position: the 0, ferry 1, crew 2, check 3, ropes 4, and 5, radio 6, then 7, leaves 10, before 11, sunrise
12."""


def played(*answers: str, task: Task = TASK) -> tuple[Tagging, Tags, Outcome]:
    environment = Tagging(len(answers))
    attempt = environment.attempt(task, answers, last=True)
    return environment, attempt, environment.outcome(attempt, None)


def test_words_that_count() -> None:
    assert content_words(TASK.prompt) == {"ferry", "crew", "check", "ropes", "radio", "leaves", "sunrise"}
    assert relative_positions(TASK.prompt)["ferry"] == pytest.approx(1 / 12)
    assert relative_positions(TASK.prompt)["sunrise"] == 1.0
    assert relative_positions("word") == {"word": 0.0}


@pytest.mark.parametrize(
    ("answers", "valid", "different", "shared"),
    [
        (("ferry, crew, check", " ropes, radio, sunrise\n\nText: more"), 6, 6, 0),
        (("ferry, crew, check", "check, ferry, radio"), 6, 4, 2),
        (("Ferry! FERRY; crew", "ropes"), 3, 3, 0),  # an agent's repeated word counts once and takes a place
        (("the, before, captain", "then"), 0, 0, 0),  # function words, and a word that is not in the text
        (("ferry, crew, check, ropes, radio", ""), 3, 3, 0),  # three words per agent, and no more
        (("\n \nferry", "\nferry crew\nradio"), 3, 2, 1),  # one line
        (("ferry, crew, check, ropes, radio, sunrise, leaves",), 6, 6, 0),
        (("ferry, crew", "ferry, radio", "ferry, ropes"), 6, 4, 2),
    ],
)
def test_rewards(answers: tuple[str, ...], valid: int, different: int, shared: int) -> None:
    _, _, outcome = played(*answers)
    assert outcome.reward == pytest.approx(different / 6)
    assert dict(outcome.levels) == pytest.approx({"valid": valid / 6, "shared": -shared / 6})
    metrics = outcome.metrics
    assert (metrics["different_words"], metrics["shared_words"]) == (different, shared)
    assert metrics["all_passed"] == (different == 6)


def test_positions_are_means_of_valid_words() -> None:
    _, _, outcome = played("ferry, crew, the", "sunrise, captain")
    assert outcome.metrics["position_1"] == pytest.approx((1 / 12 + 2 / 12) / 2)
    assert outcome.metrics["position_2"] == 1.0
    assert played("the", "ferry")[2].metrics["position_1"] == 0.5


def test_readers_see_equal_prompts_except_for_their_names() -> None:
    environment = Tagging(2)
    first, second = environment.first_prompts(TASK)
    assert first.replace("first reader", "second reader") == second
    assert second.endswith(f"Text: {TASK.prompt}\nTags of the second reader:")
    assert "baker, choir, melody\n" in first
    (alone,) = Tagging(1).first_prompts(TASK)
    assert "baker, choir, melody, square, rain, window\n" in alone
    assert "first" not in alone


def test_tags_of_the_examples_count_and_are_in_another_order_than_the_text() -> None:
    for text, tags in EXAMPLES:
        places = [relative_positions(text)[tag] for tag in tags]
        assert places != sorted(places)
        assert len(set(tags)) == 10
        assert content_words(text).issuperset(tags)


def test_agents_are_asked_for_a_configured_number_of_words() -> None:
    sections = {"dataset": {"name": "bundled:tags"}, "tags": {"words": 5}, "external": {"mode": "plain"}}
    environment = Tagging.from_config(make_config(sections=sections))
    assert "baker, choir, melody, square, rain\n" in environment.first_prompts(TASK)[0]
    answers = ["ferry, crew, check, ropes, radio, leaves", "sunrise"]
    outcome = environment.outcome(environment.attempt(TASK, answers, last=True), None)
    assert outcome.reward == pytest.approx(6 / 10)
    with pytest.raises(UserError, match="task t: its text has fewer than 10 words that can be named"):
        environment.check_task(TASK)
    (alone,) = Tagging(1, 10).first_prompts(TASK)
    assert "window, school, benches, noon, tray\n" in alone
    assert Tagging(4, 2).total == 8
    with pytest.raises(UserError, match="words"):
        make_config(sections={**sections, "tags": {"words": 11}})


def test_with_commas_a_copied_sentence_earns_nothing() -> None:
    environment = Tagging(2, commas=True)
    answers = ["ferry crew check ropes", "ferry, , the crew, radio., sunrise"]
    attempt = environment.attempt(TASK, answers, last=True)
    assert attempt.named == (("ferry crew check ropes",), ("ferry", "the crew", "radio"))
    assert attempt.valid == ((), ("ferry", "radio"))
    outcome = environment.outcome(attempt, None)
    assert environment.facts(attempt, outcome, "level_feedback", 1)[-1] == "does not count: the crew"


def test_feedback() -> None:
    environment, attempt, outcome = played("ferry, crew, captain", "ferry, radio")
    assert environment.feedback(attempt, outcome, "level_feedback", 0) == [
        "different words together: 3 of 6",
        "also named by another reader: ferry",
        "does not count: captain",
    ]
    assert environment.feedback(attempt, outcome, "level_passed", 1) == ["different words together: 3 of 6"]
    assert environment.feedback(attempt, outcome, "passed", 1) == ["Not all levels passed"]
    assert list(attempt.answers) == ["ferry, crew, captain", "ferry, radio"]


def test_tasks_and_teams_that_cannot_reach_six_words_are_rejected() -> None:
    with pytest.raises(UserError, match="task t: its text has fewer than 6 words that can be named"):
        Tagging(2).check_task(Task("t", "The ferry leaves before sunrise.", {}))
    with pytest.raises(UserError, match="set num_agents to 1, 2, 3 or 6"):
        Tagging(4)


@pytest.mark.parametrize("agents", [1, 2, 3, 6])
def test_the_bundled_texts_are_tasks(agents: int) -> None:
    tasks = load_tasks("bundled:tags", "eval[:4]")
    check_environment(Tagging(agents), tasks, [["ferry, crew"] * agents, [" "] * agents])


def test_the_bundled_texts_are_different_and_cover_every_subject_in_both_splits() -> None:
    train, held_out = load_rows("bundled:tags", "train"), load_rows("bundled:tags", "eval")
    assert (len(train), len(held_out)) == (240, 80)
    assert len({row["text"] for row in [*train, *held_out]}) == 320
    assert Counter(row["subject"] for row in train).keys() == Counter(row["subject"] for row in held_out).keys()
    assert all(20 <= len(row["text"].split()) <= 60 for row in [*train, *held_out])
    for row in [*train, *held_out]:
        Tagging(2).check_task(Task(row["task_id"], row["text"], {}))
