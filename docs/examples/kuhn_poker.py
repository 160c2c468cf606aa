"""Kuhn poker between two agents (Kuhn, 1950, "A simplified two-person poker"), with PettingZoo's AEC interface.

environment: gateway
gateway: {function: "kuhn_poker:play", roles: [first, second]}

Each player pays 1 and gets one of the cards J, Q and K. The players pass or bet in turn. A player who passes after a
bet loses 1. After two passes the higher card wins 1, and after two bets 2.
"""

from collections.abc import Iterator
from typing import Any

from marl_ray.plugins.games.adapters import play_aec

CARDS, MOVES = "JQK", ("pass", "bet")
SEATS = ("first", "second")
HISTORIES = ((), ("pass",), ("bet",), ("pass", "bet"))
"""Histories of a game that has not ended."""


def gain(deal: str, moves: tuple[str, ...]) -> int | None:
    """Return the gain of the first player, None if the game has not ended. `deal` are the cards of both players."""
    if moves in HISTORIES:
        return None
    if moves[-1] == "pass" and "bet" in moves:  # the player who bet wins
        return 1 if moves == ("bet", "pass") else -1
    stake = 2 if "bet" in moves else 1
    return stake if CARDS.index(deal[0]) > CARDS.index(deal[1]) else -stake


class KuhnPoker:
    """A game with the given cards. An observation is the own card and the moves so far."""

    def __init__(self, deal: str) -> None:
        self.deal = deal

    def reset(self, seed: int | None = None) -> None:
        self.moves: tuple[str, ...] = ()
        self.left = [*SEATS]
        """Seats that have not read the end of the game."""

    def agent_iter(self) -> Iterator[str]:
        while gain(self.deal, self.moves) is None:
            yield SEATS[len(self.moves) % 2]
        while self.left:
            yield self.left[0]

    def last(self) -> tuple[tuple[str, tuple[str, ...]], float, bool, bool, dict[str, Any]]:
        won = gain(self.deal, self.moves)
        number = len(self.moves) % 2 if won is None else SEATS.index(self.left[0])
        reward = 0.0 if won is None else float(won if number == 0 else -won)
        return (self.deal[number], self.moves), reward, won is not None, False, {}

    def step(self, action: str | None) -> None:
        if action is None:
            self.left.pop(0)
        else:
            self.moves = (*self.moves, action)

    def close(self) -> None:
        pass


def show(seat: str, observation: tuple[str, tuple[str, ...]]) -> str:
    """Return the text of an observation."""
    card, moves = observation
    return f"Your card: {card}. Moves: {' '.join(moves) or 'none'}. Your move, pass or bet:\n"


def read(answer: str, observation: Any) -> str | None:
    """Return the move in an answer."""
    word = answer.strip()
    return word if word in MOVES else None


async def play(episode: Any) -> dict[str, Any]:
    """Play the deal of the task. An observation has all earlier moves, so no conversation is needed."""
    seats = {seat: seat for seat in SEATS}
    return await play_aec(
        episode, KuhnPoker(episode.task.prompt), seats=seats, show=show, read=read, remembers=False, illegal_reward=-2.0
    )
