"""Seeded generators of rooms with a solution, and sources of rows for `dataset.name: python:MODULE:NAME`."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial

from marl_ray.core.random_streams import stream_seed
from marl_ray.data.loading import DataRow
from marl_ray.plugins.plan_path.rooms import STEPS, Cell, Room, RoomState, draw_room, solution

PULLS = 0.7
"""Chance that reverse play pulls a box if it can, instead of a walk of one cell."""


def path_room(rng: random.Random, size: int, walls: float, shortest: int) -> Room:
    """Return a room of `size` rows and columns without boxes. Each cell is a wall with the chance `walls`; start and
    goal are random, and at least `shortest` moves apart."""
    while True:
        free = _free_cells(rng, size, walls)
        if len(free) < 2:
            continue
        player, goal = rng.sample(free, 2)
        room = Room(size, size, frozenset(free), frozenset([goal]), RoomState(player, frozenset()))
        moves = solution(room, room.start)
        if moves is not None and len(moves) >= shortest:
            return room


def push_room(rng: random.Random, size: int, walls: float, shortest: int, boxes: int, pulls: int = 40) -> Room:
    """Return a room with boxes, made by reverse play: the boxes begin on the goals, and a player that walks backwards
    pulls them away, so that there is a solution. No box begins on a goal."""
    while True:
        free = _free_cells(rng, size, walls)
        if len(free) < 2 * boxes + 1:
            continue
        player, *goals = rng.sample(free, boxes + 1)
        room = Room(size, size, frozenset(free), frozenset(goals), RoomState(player, frozenset(goals)))
        state = room.start
        for _ in range(pulls):
            state = _walk_back(rng, room, state)
        if state.boxes & room.goals:
            continue
        room = replace(room, start=state)
        moves = solution(room, state)
        assert moves is not None, "reverse play is a solution, read backwards"
        if len(moves) >= shortest:
            return room


def _free_cells(rng: random.Random, size: int, walls: float) -> list[Cell]:
    cells = []
    for y in range(size):
        for x in range(size):
            if rng.random() >= walls:
                cells.append((y, x))
    return cells


def _walk_back(rng: random.Random, room: Room, state: RoomState) -> RoomState:
    """Return the state before a random last move: the player steps back, and may pull the box in front of it."""
    y, x = state.player
    walks = []
    pulls = []
    for dy, dx in STEPS.values():
        back = (y - dy, x - dx)
        if back not in room.free or back in state.boxes:
            continue
        walks.append(RoomState(back, state.boxes))
        box = (y + dy, x + dx)
        if box in state.boxes:
            pulls.append(RoomState(back, state.boxes - {box} | {state.player}))
    if pulls and rng.random() < PULLS:
        return rng.choice(pulls)
    if walks:
        return rng.choice(walks)
    return state


@dataclass(frozen=True)
class Rooms:
    """A source of rows: different rooms, of which the first are of split `train` and the others of `eval`."""

    make: Callable[[random.Random], Room]
    train: int
    evaluated: int
    seed: int = 0

    @cached_property
    def splits(self) -> dict[str, list[DataRow]]:
        rng = random.Random(stream_seed(self.seed, "plan_path"))
        found: dict[tuple[str, ...], None] = {}
        while len(found) < self.train + self.evaluated:
            room = self.make(rng)
            found[tuple(draw_room(room, room.start))] = None
        rows: list[DataRow] = []
        for number, room_rows in enumerate(found):
            rows.append({"task_id": f"room/{number}", "room": list(room_rows)})
        return {"train": rows[: self.train], "eval": rows[self.train :]}


SMALL_PATHS = Rooms(partial(path_room, size=4, walls=0.25, shortest=2), 512, 128)
PATHS = Rooms(partial(path_room, size=10, walls=0.22, shortest=2), 1000, 200)
"""Rooms as in AT-GRPO's Plan-Path: 10 x 10 cells, of which 22 % are walls."""
BOXES = Rooms(partial(push_room, size=4, walls=0.15, shortest=3, boxes=1), 1000, 200)
"""Rooms as in AT-GRPO's Sokoban: 6 x 6 cells with the walls around, and one box."""
TWO_BOXES = Rooms(partial(push_room, size=5, walls=0.15, shortest=6, boxes=2), 400, 100)
