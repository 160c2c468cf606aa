"""Rooms in the usual notation of Sokoban: moves, walks, and shortest solutions by search.

A room without boxes is a path-planning task, in which the player itself has to reach a goal. Everything outside of the
drawn cells is wall.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

WALL = "#"
FLOOR = "-"
GOAL = "."
PLAYER = "@"
PLAYER_ON_GOAL = "+"
BOX = "$"
BOX_ON_GOAL = "*"
SYMBOLS = WALL + FLOOR + GOAL + PLAYER + PLAYER_ON_GOAL + BOX + BOX_ON_GOAL
STEPS = {"U": (-1, 0), "D": (1, 0), "L": (0, -1), "R": (0, 1)}
MAX_STATES = 100_000
"""Maximum number of states of a search, which takes about a second. Rooms that need more are rejected."""

Cell = tuple[int, int]
"""Row and column from the upper left corner, from 0."""


@dataclass(frozen=True, slots=True)
class RoomState:
    """The cells of the player and of all boxes."""

    player: Cell
    boxes: frozenset[Cell]


@dataclass(frozen=True, slots=True)
class Room:
    """The cells without walls, the goals, and the first state."""

    height: int
    width: int
    free: frozenset[Cell]
    goals: frozenset[Cell]
    start: RoomState

    def is_solved(self, state: RoomState) -> bool:
        """Return whether all boxes stand on goals, or without boxes the player."""
        if state.boxes:
            return state.boxes == self.goals
        return state.player in self.goals


@dataclass(frozen=True, slots=True)
class Walk:
    """The result of moves: the last state, the number of moves that were made, and how many of them had no effect."""

    state: RoomState
    moves: int
    without_effect: int


def read_room(rows: Sequence[str]) -> Room:
    """Return the room of these rows. Raises ValueError unless the rows have equal lengths, known symbols, one player,
    and as many goals as boxes, or without boxes one goal."""
    free = set()
    goals = set()
    boxes = set()
    players = []
    for y, row in enumerate(rows):
        for x, symbol in enumerate(row):
            if symbol not in SYMBOLS:
                raise ValueError(f"unknown symbol {symbol!r}: use {' '.join(SYMBOLS)}")
            if symbol != WALL:
                free.add((y, x))
            if symbol in GOAL + PLAYER_ON_GOAL + BOX_ON_GOAL:
                goals.add((y, x))
            if symbol in BOX + BOX_ON_GOAL:
                boxes.add((y, x))
            if symbol in PLAYER + PLAYER_ON_GOAL:
                players.append((y, x))
    if len({*map(len, rows)}) != 1:
        raise ValueError("the rows of a room need equal lengths")
    if len(players) != 1 or len(goals) != max(1, len(boxes)):
        raise ValueError("a room needs one player, and as many goals as boxes, or without boxes one goal")
    start = RoomState(players[0], frozenset(boxes))
    return Room(len(rows), len(rows[0]), frozenset(free), frozenset(goals), start)


def draw_room(room: Room, state: RoomState) -> list[str]:
    """Return the rows of a room in a state."""
    rows = []
    for y in range(room.height):
        row = ""
        for x in range(room.width):
            is_goal = (y, x) in room.goals
            if (y, x) not in room.free:
                row += WALL
            elif (y, x) == state.player:
                row += PLAYER_ON_GOAL if is_goal else PLAYER
            elif (y, x) in state.boxes:
                row += BOX_ON_GOAL if is_goal else BOX
            else:
                row += GOAL if is_goal else FLOOR
        rows.append(row)
    return rows


def move(room: Room, state: RoomState, letter: str) -> RoomState:
    """Return the state after a move. A move against a wall, or against a box that cannot move, has no effect."""
    dy, dx = STEPS[letter]
    y, x = state.player
    cell = (y + dy, x + dx)
    if cell not in room.free:
        return state
    if cell not in state.boxes:
        return RoomState(cell, state.boxes)
    behind = (y + 2 * dy, x + 2 * dx)
    if behind not in room.free or behind in state.boxes:
        return state
    return RoomState(cell, state.boxes - {cell} | {behind})


def walk(room: Room, moves: Sequence[str]) -> Walk:
    """Return the walk of these moves from the start. It ends when the room is solved."""
    state = room.start
    without_effect = 0
    for count, letter in enumerate(moves):
        if room.is_solved(state):
            return Walk(state, count, without_effect)
        after = move(room, state, letter)
        without_effect += after == state
        state = after
    return Walk(state, len(moves), without_effect)


@lru_cache(maxsize=65536)
def solution(room: Room, state: RoomState) -> tuple[str, ...] | None:
    """Return the first of the shortest solutions from a state, in the order U, D, L, R; None if there is none. Raises
    ValueError after MAX_STATES states."""
    moves_to: dict[RoomState, tuple[str, ...]] = {state: ()}
    waiting = deque([state])
    while waiting:
        current = waiting.popleft()
        if room.is_solved(current):
            return moves_to[current]
        for letter in STEPS:
            after = move(room, current, letter)
            if after not in moves_to:
                moves_to[after] = (*moves_to[current], letter)
                waiting.append(after)
        if len(moves_to) > MAX_STATES:
            raise ValueError(f"its search needs more than {MAX_STATES} states: use fewer cells or boxes")
    return None
