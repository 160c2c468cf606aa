"""benchmarks/tags: measures by hand-computed examples, arms that can run, and a page that is up to date."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks import critical_path
from benchmarks.learning.__main__ import current
from benchmarks.learning.study import Study
from benchmarks.tags.__main__ import RESULTS
from benchmarks.tags.arms import TAGS
from benchmarks.tags.clock import CLOCK, catch_up, limits_table, report
from benchmarks.tags.measures import measured, side_by_side
from benchmarks.tags.report import draw, table
from marl_ray.config.budget import training_budget
from marl_ray.core.episode import Task
from marl_ray.data.loading import load_tasks
from marl_ray.plugins.tags.environment import Tagging
from tests.factories import study_config

TASK = Task("t", "The ferry crew check ropes and radio, then the ferry leaves before sunrise.", {})
PAGES = Path(__file__).resolve().parents[2] / "docs" / "results"


def test_every_combination_of_answers_is_a_joint_action() -> None:
    found = measured([(TASK, [["ferry, crew", "ferry, check"], ["sunrise", "ferry"]])])
    assert found["partners"] == pytest.approx((3 + 2 + 3 + 2) / 4)
    assert found["twice_1"] == 3  # ferry, crew, check
    assert found["twice_2"] == 2  # sunrise, ferry
    assert found["twice"] == 2.5
    assert found["gain"] == 0.0
    assert found["shared"] == 0.5  # ferry, with either answer of the first reader
    assert found["position_1"] == pytest.approx((1.5 / 12 + 2 / 12) / 2, abs=1e-4)
    assert found["position_2"] == pytest.approx((1 + 1 / 12) / 2, abs=1e-4)


def test_answers_without_words_have_no_position() -> None:
    found = measured([(TASK, [["the", "sunrise"], ["the", "the"]]), (TASK, [["sunrise"] * 2, ["the", "the"]])])
    assert found["position_1"] == 1.0
    assert "position_2" not in found
    assert found["partners_half"] == pytest.approx(1.96 * 0.5 / 2, abs=1e-4)  # 0.5 and 1 different words
    single = measured([(TASK, [["ferry, crew, check, ropes, radio, sunrise"]])])  # one answer cannot be asked twice
    assert single == {"partners": 6.0, "position_1": pytest.approx(28 / 72, abs=1e-4), "copied": 0.0}


def test_words_that_stand_side_by_side_are_copied() -> None:
    assert side_by_side(TASK.prompt, ["and", "radio", "then"])
    assert not side_by_side(TASK.prompt, ["ropes", "radio"])
    assert not side_by_side(TASK.prompt, ["ferry"])
    found = measured([(TASK, [["ferry, crew", "ferry, check"], ["before sunrise", "ferry"]])])
    assert found["copied"] == 2 / 4


def test_a_single_agent_asked_twice_has_the_words_of_both_answers() -> None:
    found = measured([(TASK, [["ferry, crew", "ferry, check, ropes"]])], {"words": 5})
    assert (found["partners"], found["twice"]) == (2.5, 4.0)
    assert "gain" not in found


@pytest.mark.parametrize(("study", "name"), [(study, name) for study in (TAGS, CLOCK) for name in study.arms])
def test_an_arm_is_a_config_with_as_many_steps_and_joint_actions_as_the_pair(study: Study, name: str) -> None:
    config = study_config(study, name)
    assert training_budget(config, 240).total_steps == (40 if study is TAGS else 20)
    assert (config.training.rollout_buffer_size, config.training.num_generations) == (4, 8)
    environment = Tagging.from_config(config)
    assert environment.total == (6 if study is TAGS else 10)
    for task in load_tasks("bundled:tags", f"{config.dataset.train_split}+eval"):
        environment.check_task(task)


def test_table_and_figure(tmp_path: Path) -> None:
    def line(arm: str, seed: int, partners: float) -> dict[str, object]:
        last = {"step": 40, "partners": partners, "twice": 1.0, "gain": partners - 1.0, "gain_half": 0.2}
        places = {"shared": 0.5, "position_1": 0.2, "position_2": 0.8}
        first = {"step": 0, "partners": 1.0, "twice": 1.0, "gain": 0.0, "gain_half": 0.1, **places}
        evaluations = [first, {**last, **places}]
        return {"arm": arm, "seed": seed, "answer_tokens": 9.0, "evaluations": evaluations, "curve": evaluations}

    lines = [line("joint", 1, 3.0), line("shared", 1, 2.0), line("shared", 2, 3.0)]
    _, _, before, joint, shared = table(lines).splitlines()
    assert before == "| before training | 1 | 0 |  | 1.00 | 1.00 | +0.00 ± 0.10 | 0.50 | 0.20 | 0.80 |  |"
    assert joint == "| both learn | 1 | 40 | 9.0 | 3.00 | 1.00 | +2.00 ± 0.20 | 0.50 | 0.20 | 0.80 |  |"
    assert "| 1, 2 | 40 | 9.0 ± 0.00 | 2.50 ± 6.35 |" in shared.replace("| 9.0 |", "| 9.0 ± 0.00 |")
    assert shared.endswith("| 0.20 [0.20, 0.20] | 0.80 [0.80, 0.80] |  |")
    draw(lines, tmp_path / "tags.png")
    assert (tmp_path / "tags.png").stat().st_size > 10_000
    draw([], tmp_path / "none.png")
    assert not (tmp_path / "none.png").exists()


def test_words_by_tokens_and_the_tokens_at_which_one_agent_has_caught_up(tmp_path: Path) -> None:
    def line(arm: str, **last: float) -> dict[str, Any]:
        return {"arm": arm, "seed": 1, "evaluations": [last]}

    lines = [
        line("joint", partners=6.0, words_8=4.0, words_14=6.0),
        line("single_14", partners=4.0, twice=5.0, words_8=3.0, words_14=4.0, twice_14=5.0),
        # Trained for long answers, so that its beginnings are worse.
        line("single_28", partners=6.5, words_8=2.0, words_14=3.5, words_20=5.5, words_28=6.5),
    ]
    assert limits_table(lines).splitlines()[2:] == [
        "| a pair | 4.00 | 6.00 |  |  |",
        "| one agent | 3.00 | 4.00 | 5.50 | 6.50 |",
        "| one agent asked twice |  | 5.00 |  |  |",
    ]
    assert catch_up(lines) == "One agent has the pair's 6.00 words after 24 tokens."
    assert catch_up(lines[:2]).startswith("One agent has 4.00 words after 14 tokens, fewer than")
    more = [{**each, "seed": 2} for each in lines]
    text = report([*lines, *more], tmp_path / "clock.png")
    assert "| a pair, less one agent asked twice, 14 tokens each | 2 | +1.000 ± 0.000 | 2 of 2 |" in text
    assert (tmp_path / "clock.png").stat().st_size > 10_000


def test_the_seconds_of_each_way_are_relative_to_the_pair() -> None:
    ways = {"pair": [1.0, 2.0, 3.0], "one agent": [3.0, 3.0, 3.0]}
    rows = [{"machine": "m", "load": 0.1, "way": way, "batch": 1, "seconds": seconds} for way, seconds in ways.items()]
    assert critical_path.table(rows).splitlines() == [
        "| m, load 0.1 before | batch 1 |",
        "| --- | --- |",
        "| pair | 2.00 s (1.00 to 3.00), 1.00 |",
        "| one agent | 3.00 s (3.00 to 3.00), 1.50 |",
    ]


def test_the_pages_contain_the_tables_of_the_results() -> None:
    for study, page in ((TAGS, "tags.md"), (CLOCK, "clock.md")):
        lines = current(study, RESULTS)
        for row in table(lines, study).splitlines() if lines else []:
            assert row in (PAGES / page).read_text(encoding="utf-8")
