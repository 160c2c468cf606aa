"""Rooms: reading, moves, walks and shortest solutions, and generated rooms, all of which have a solution."""

from __future__ import annotations

import random

import pytest

from marl_ray.core.errors import UserError
from marl_ray.data.loading import load_tasks
from marl_ray.plugins.plan_path import generate, rooms
from marl_ray.plugins.plan_path.rooms import Room, draw_room, move, read_room, solution, walk
from marl_ray.plugins.plan_path.rows import PLAN_PATH

PATH = ["@-#.", "#---"]
PUSH = ["-----", "@-$-.", "-----"]


def test_a_room_is_drawn_as_it_was_read() -> None:
    for rows in (PATH, PUSH, ["+$*", "-#-"]):
        room = read_room(rows)
        assert draw_room(room, room.start) == rows


@pytest.mark.parametrize(
    ("rows", "moves", "after", "without_effect"),
    [
        (PATH, "RDRRU", ["--#+", "#---"], 0),
        (PATH, "RRUL", ["@-#.", "#---"], 2),  # a wall inside, and the wall around
        (PATH, "RDRRUL", ["--#+", "#---"], 0),  # the walk ends at the goal
        (PUSH, "RRR", ["-----", "---@*", "-----"], 0),
        (["@$$-.."], "R", ["@$$-.."], 1),  # two boxes do not move
        (["@$#."], "R", ["@$#."], 1),  # nor does a box against a wall
    ],
)
def test_moves(rows: list[str], moves: str, after: list[str], without_effect: int) -> None:
    room = read_room(rows)
    walked = walk(room, moves)
    assert (draw_room(room, walked.state), walked.without_effect) == (after, without_effect)


def _solved_within(room: Room, state: rooms.RoomState, moves: int) -> bool:
    """Return whether any of all walks of this length solves the room: a search of another kind."""
    if room.is_solved(state):
        return True
    if moves == 0:
        return False
    return any(_solved_within(room, move(room, state, letter), moves - 1) for letter in "UDLR")


def test_solutions_are_shortest() -> None:
    for seed in range(12):
        rng = random.Random(seed)
        for room in (
            generate.path_room(rng, size=3, walls=0.3, shortest=2),
            generate.push_room(rng, size=3, walls=0.0, shortest=2, boxes=1),
        ):
            moves = solution(room, room.start)
            assert moves is not None
            assert room.is_solved(walk(room, moves).state)
            if len(moves) < 7:
                assert not _solved_within(room, room.start, len(moves) - 1)


def test_a_box_in_a_corner_has_no_solution() -> None:
    room = read_room(["$-@", "--."])
    assert solution(room, room.start) is None
    with pytest.raises(UserError, match="task plan_path/row 0: the room has no solution, or is solved already"):
        PLAN_PATH.task({"room": ["$-@", "--."]}, 0)


def test_a_room_that_is_too_large_to_search_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rooms, "MAX_STATES", 50)
    with pytest.raises(UserError, match="its search needs more than 50 states: use fewer cells or boxes"):
        PLAN_PATH.task({"room": ["@-------", "-$-$----", "--------", "------.."]}, 0)


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ([], r"has no room \(field room, a list of rows of symbols\)"),
        (["@-?"], "unknown symbol '\\?'"),
        (["@-.", "--"], "the rows of a room need equal lengths"),
        (["--."], "a room needs one player"),
        (["@$-"], "as many goals as boxes"),
        (["@.."], "without boxes one goal"),
        (["+"], "no solution, or is solved already"),
    ],
)
def test_rows_that_are_no_rooms_are_rejected(rows: list[str], problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        PLAN_PATH.task({"room": rows}, 0)


@pytest.mark.parametrize("name", ["SMALL_PATHS", "PATHS", "BOXES"])
def test_generated_rooms_are_different_tasks(name: str) -> None:
    tasks = load_tasks(f"python:marl_ray.plugins.plan_path.generate:{name}", "eval", "plan_path")
    source = getattr(generate, name)
    assert len(tasks) == source.evaluated
    rows = [tuple(row["room"]) for split in source.splits.values() for row in split]
    assert len(set(rows)) == len(rows) == source.train + source.evaluated
    again = generate.Rooms(source.make, 3, 0).splits["train"]
    assert again == source.splits["train"][:3]


def test_reverse_play_of_two_boxes() -> None:
    room = generate.TWO_BOXES.make(random.Random(0))
    assert (len(room.start.boxes), len(room.goals)) == (2, 2)
    assert not room.start.boxes & room.goals
