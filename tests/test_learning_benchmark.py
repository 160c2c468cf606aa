"""benchmarks/learning.py: arms that can run, intervals of the textbook, a page that is up to date."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from benchmarks.learning import ARMS, COMMON, CONFIG, GROUPS, JOINT, RESULTS, current
from benchmarks.learning_report import interval, table
from marl_ray.config import from_tree, parse_overrides
from marl_ray.config.arithmetic import arithmetic

TITLES = {group: {name: arm.title for name, arm in of.items()} for group, of in GROUPS.items()}
PAGE = Path(__file__).resolve().parent.parent / "docs" / "learning.md"


@pytest.mark.parametrize("name", ARMS)
def test_an_arm_is_a_config_of_as_many_steps_and_about_as_many_answers_as_the_joint_one(name: str) -> None:
    def answers(arm: str) -> tuple[int, int]:
        settings = {**COMMON, **ARMS[arm].overrides}
        overrides = parse_overrides([f"{key}={value}" for key, value in settings.items()])
        config = from_tree(yaml.safe_load(CONFIG.read_text()), "magrpo", overrides)
        found = arithmetic(config, 214)
        return found.total_steps, found.groups_per_step * config.rollout.num_generations * config.num_agents

    (steps, own), (joint_steps, joint) = answers(name), answers(JOINT)
    assert steps == joint_steps
    assert 0.9 < own / joint < 1.1


def test_intervals_are_students() -> None:
    mean, half = interval([1.0, 2.0, 3.0])
    assert (mean, half) == (2.0, pytest.approx(4.303 / 3**0.5, rel=1e-3))
    assert interval([5.0]) == (5.0, None)
    assert interval([1.0] * 5) == (1.0, 0.0)


def test_differences_are_paired_by_seed() -> None:
    def line(arm: str, seed: int, passed: float) -> dict[str, object]:
        return {"arm": arm, "seed": seed, "before": {"passed": 0.1}, "after": {"passed": passed}}

    lines = [line(JOINT, 1, 0.5), line(JOINT, 2, 0.9), line("only_main", 2, 0.8), line("only_main", 1, 0.4)]
    *_, last = table([*lines, line("only_main", 3, 0.9)], TITLES, JOINT).splitlines()
    assert last.startswith("| only main | 3 |")
    assert last.endswith("| -0.10 ± 0.00 |")


def test_the_page_has_the_table_of_its_results() -> None:
    assert table(current(RESULTS / "results.jsonl"), TITLES, JOINT) in PAGE.read_text()
