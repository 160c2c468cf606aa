"""Tic-tac-toe between two agents: an environment with PettingZoo's AEC interface, and the function that plays it.

environment: gateway
gateway: {function: "tic_tac_toe:play", roles: [first, second]}
"""

import random
from collections.abc import Iterator
from typing import Any

from marl_ray.plugins.games.adapters import play_aec

SEATS = ("X", "O")
EMPTY = "123456789"
"""A digit is a free cell."""
OPENING = 6
"""Largest number of random moves at the beginning of a game."""
LINES = (*((i, i + 1, i + 2) for i in (0, 3, 6)), *((i, i + 3, i + 6) for i in (0, 1, 2)), (0, 4, 8), (2, 4, 6))


def has_line(board: str, seat: str) -> bool:
    """Return whether a seat has a complete line."""
    return any(all(board[cell] == seat for cell in line) for line in LINES)


def opening(seed: int) -> str:
    """Return the board after up to `OPENING` random moves, without a complete line. Self-play from such boards reaches
    more situations than from the empty board."""
    rng = random.Random(seed)
    while True:
        board = EMPTY
        for number in range(rng.randint(0, OPENING)):
            cell = rng.choice([cell for cell in board if cell.isdecimal()])
            board = board.replace(cell, SEATS[number % 2])
        if not any(has_line(board, seat) for seat in SEATS):
            return board


class TicTacToe:
    """The board is a text of nine characters, which begins with `opening(seed)`, or empty without a seed."""

    def reset(self, seed: int | None = None) -> None:
        self.board, self.winner = EMPTY if seed is None else opening(seed), ""
        self.moves = sum(not cell.isdecimal() for cell in self.board)
        self.left = [*SEATS]
        """Seats that have not read the end of the game."""

    @property
    def ended(self) -> bool:
        return bool(self.winner) or self.moves == 9

    def agent_iter(self) -> Iterator[str]:
        while not self.ended:
            yield SEATS[self.moves % 2]
        while self.left:
            yield self.left[0]

    def last(self) -> tuple[str, float, bool, bool, dict[str, Any]]:
        seat = self.left[0] if self.ended else ""
        reward = (1.0 if seat == self.winner else -1.0) if self.winner and seat else 0.0
        return self.board, reward, self.ended, False, {}

    def step(self, action: int | None) -> None:
        if action is None:
            self.left.pop(0)
            return
        seat = SEATS[self.moves % 2]
        self.board = self.board[: action - 1] + seat + self.board[action:]
        self.moves += 1
        if has_line(self.board, seat):
            self.winner = seat

    def close(self) -> None:
        pass


def show(seat: str, board: str) -> str:
    """Return the text of a board, with a dash for each free cell."""
    cells = ["-" if cell.isdecimal() else cell for cell in board]
    rows = " /".join(f" {' '.join(cells[i : i + 3])}" for i in (0, 3, 6))
    return f"Board:{rows}. You are {seat}. Your cell, 1 to 9:\n"


def read(answer: str, board: str) -> int | None:
    """Return the first number of a free cell in an answer."""
    return next((int(letter) for letter in answer if letter.isdecimal() and letter in board), None)


async def play(episode: Any) -> dict[str, Any]:
    """Play one game. The board shows all earlier moves, so no conversation is needed. Siblings begin at one board."""
    seats = {"X": "first", "O": "second"}
    return await play_aec(episode, TicTacToe(), seats=seats, show=show, read=read, remembers=False, illegal_reward=-2.0)
