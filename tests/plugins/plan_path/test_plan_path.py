"""Planner and checkers: moves in answers, order and prompts, rewards and their bounds, feedback, the best constant."""

from __future__ import annotations

import math
import random

import pytest

from marl_ray.core.episode import Outcome
from marl_ray.data.loading import load_tasks
from marl_ray.plugins.plan_path.environment import PlanPath, best_constant, plan_levels
from marl_ray.plugins.plan_path.generate import BOXES, SMALL_PATHS
from marl_ray.plugins.plan_path.prompts import read_moves
from marl_ray.plugins.plan_path.rooms import read_room
from marl_ray.plugins.plan_path.rows import PLAN_PATH
from marl_ray.testing import check_environment

TASK = PLAN_PATH.task({"room": ["@-#.", "#---"]}, 0)
"""A room whose only shortest solution is R D R R U."""


def outcome(*answers: str) -> Outcome:
    environment = PlanPath(len(answers))
    return environment.outcome(environment.attempt(TASK, answers, last=True), None)


@pytest.mark.parametrize(
    ("answer", "moves"),
    [
        ("U D L R", "UDLR"),
        ('Around the wall.\n#### ["U", "R"]', "UR"),
        ("Moves: RRD", "RRD"),
        ("up, Up; LEFT", "UUL"),
        ("R R\nI go right and then up.", "RR"),
        ("R R\nU", "U"),  # the last line
        ("ok", None),
        ("I go R", None),
        ("", None),
        ("U" * 300, "U" * 100),
    ],
)
def test_moves_are_read(answer: str, moves: str | None) -> None:
    assert read_moves(answer) == (None if moves is None else tuple(moves))


@pytest.mark.parametrize(
    ("answers", "levels"),
    [
        (("R D R R U",), (1.0, 1.0, 0.5, 0.0)),
        (("R L R D R R U",), (1.0, 1.0, 0.5 * 5 / 7, 0.0)),
        (("R D R R",), (0.8, 0.0, 0.0, 0.0)),
        (("R R R R R R R R",), (0.2, 0.0, 0.0, -0.5)),
        (("",), (0.0, 0.0, 0.0, 0.0)),
        (("R", "ok"), (0.2, 0.0, 0.0, 0.0)),
        (("R", "R D R R U"), (1.0, 1.0, 0.5, 0.0)),
        (("R D R R U", "L"), (0.0, 0.0, 0.0, -0.1)),
    ],
)
def test_levels(answers: tuple[str, ...], levels: tuple[float, ...]) -> None:
    names = ("progress", "solved", "shortest", "without_effect")
    found = outcome(*answers)
    assert dict(found.levels) == pytest.approx(dict(zip(names, levels, strict=True)))
    assert found.reward == pytest.approx(sum(levels))


def test_an_agents_own_reward_is_the_mean_of_its_plans_and_the_last_plans() -> None:
    mended = outcome("R", "R D R R U")
    assert mended.rewards == pytest.approx(((0.2 + 2.5) / 2, 2.5))
    assert (mended.metrics["planned"], mended.metrics["mended"], mended.metrics["confirmed"]) == (0.0, 1.0, 0.0)
    broken = outcome("R D R R U", "L", "ok")
    assert broken.rewards == pytest.approx((1.2, -0.1, -0.1))
    assert (broken.metrics["planned"], broken.metrics["broken"], broken.metrics["confirmed"]) == (1.0, 1.0, 0.5)


def test_rewards_are_bounded() -> None:
    rng = random.Random(0)
    for source in (SMALL_PATHS, BOXES):
        for row in source.splits["eval"][:40]:
            room = read_room(row["room"])
            for _ in range(40):
                plan = tuple(rng.choices("UDLR", k=rng.randint(0, 12)))
                assert -0.5 <= math.fsum(plan_levels(room, plan).values()) <= 2.5


def test_a_checker_reads_the_plan_before_it() -> None:
    environment = PlanPath(3)
    assert environment.roles(TASK) == ["planner", "checker_1", "checker_2"]
    assert environment.order(TASK) == [[0], [1], [2]]
    planner, checker, _ = environment.first_prompts(TASK)
    assert "@ - # .\n# - - -\nWrite all moves" in planner
    assert environment.prompt_after(TASK, 1, checker, {0: "R D"}) == f"Plan: R D\n\n{checker}"
    assert environment.prompt_after(TASK, 2, checker, {0: "R D", 1: "ok"}).startswith("Plan: R D\n")
    assert environment.prompt_after(TASK, 2, checker, {0: "R D", 1: "U"}).startswith("Plan: U\n")
    assert environment.prompt_after(TASK, 1, checker, {0: "?"}).startswith("Plan: (empty)\n")


def test_feedback_shows_the_room_after_the_last_plan() -> None:
    environment = PlanPath(2)
    attempt = environment.attempt(TASK, ["L", "R U D"], last=False)
    found = environment.outcome(attempt, None)
    lines = ["After the plan:", "- - # .", "# @ - -", "moves without effect: 1"]
    assert [environment.feedback(attempt, found, "level_feedback", agent) for agent in (0, 1)] == [lines, lines]
    assert environment.feedback(attempt, found, "passed", 0) == ["Not all levels passed"]
    assert list(attempt.answers) == ["L", "R U D"]
    assert list(environment.attempt(TASK, ["L", "fine"], last=False).answers) == ["L", "ok"]


@pytest.mark.parametrize("agents", [1, 2, 3])
@pytest.mark.parametrize("name", ["SMALL_PATHS", "BOXES"])
def test_generated_rooms(name: str, agents: int) -> None:
    tasks = load_tasks(f"python:marl_ray.plugins.plan_path.generate:{name}", "eval[:4]", "plan_path")
    check_environment(PlanPath(agents), tasks, [["U R"] * agents, ["ok"] * agents])


def test_the_best_constant_is_no_worse_than_any_other_plan() -> None:
    rooms = [read_room(row["room"]) for row in SMALL_PATHS.splits["eval"][:16]]
    plan, mean = best_constant(rooms, 3)
    for other in (("U",), ("R", "D"), ("L", "L", "L"), plan):
        assert sum(math.fsum(plan_levels(room, other).values()) for room in rooms) / len(rooms) <= mean + 1e-9
