"""Demonstrations of small rooms and of small Hanabi: clean answers are right, noisy ones sometimes; all are legal."""

from __future__ import annotations

import random

import pytest

from docs.examples.hanabi import MOVES
from marl_ray.plugins.plan_path.environment import plan_levels
from marl_ray.plugins.plan_path.prompts import CHECK, CONFIRMED, PLAN, read_moves
from marl_ray.plugins.plan_path.rooms import Room, read_room
from tools.toy import make_hanabi
from tools.toy.make_plan_path import BOXES_4, CLEAN, NOISY, PATHS_4, Demonstrator, PathSkill, RoomKind
from tools.toy.scenes import Scene


def room_of(prompt: str) -> Room:
    """Return the room in front of the instruction, the last one of a prompt."""
    lines = prompt.strip().splitlines()[-5:-1]
    return read_room([line.replace(" ", "") for line in lines])


def room_scenes(kind: RoomKind, skill: PathSkill) -> list[Scene]:
    return Demonstrator(kind, skill, random.Random(1)).scenes(200)


@pytest.mark.parametrize("kind", [PATHS_4, BOXES_4], ids=["paths", "boxes"])
def test_clean_plans_and_checks_of_rooms_are_right(kind: RoomKind) -> None:
    kinds = set()
    for scene in room_scenes(kind, CLEAN):
        room = room_of(scene.prompt)
        (answer,) = scene.responses
        plan = read_moves(answer)
        kinds.add((PLAN in scene.prompt, CHECK in scene.prompt, answer == CONFIRMED, "After the plan" in scene.prompt))
        if plan is None:
            assert answer == CONFIRMED
            plan = read_moves(scene.prompt.splitlines()[0])  # `Plan: ...`
        assert plan is not None
        assert plan_levels(room, plan)["solved"] == 1.0
    assert len(kinds) == 6  # plans, confirmations and corrections, each in both turns


def test_noisy_plans_of_rooms_are_sometimes_right() -> None:
    solved = []
    for scene in room_scenes(PATHS_4, NOISY):
        if PLAN in scene.prompt:
            room = room_of(scene.prompt)
            for answer in scene.responses:
                solved.append(plan_levels(room, read_moves(answer) or ())["solved"])
    assert 0.35 < sum(solved) / len(solved) < 0.55


def test_moves_in_scenes_of_hanabi_are_legal() -> None:
    for scene in make_hanabi.scenes(200, 0.5, 2, random.Random(1)):
        assert scene.prompt.endswith("Your move:\n")
        for answer in scene.responses:
            assert answer in MOVES
            assert "Hints: 0" not in scene.prompt or answer in MOVES[:2]
