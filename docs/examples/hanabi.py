"""A small Hanabi of two players with one card each, for self-play and cross-play.

environment: gateway
gateway: {function: "hanabi:play", roles: [first, second]}

The deck has one card of each of two colours and three ranks. A player sees the partner's card and not the own one. The
players move in turn: play or discard the own card and draw, or tell the partner the colour or the rank of its card,
which costs one of two hints. A discard brings a hint back. Each colour has to be played in the order 1, 2, 3; a wrong
card ends the game. After the last draw each player moves once more. The score is the number of played cards.
`python -m benchmarks.hanabi` computes the exact optimum.
"""

import itertools
from functools import cached_property
from typing import Any

COLOURS = "ab"
RANKS = "123"
CARDS = tuple(colour + rank for colour in COLOURS for rank in RANKS)
HINTS = 2
MOVES = ("play", "discard", "colour", "rank")
ROLES = ("first", "second")
ILLEGAL = -1.0
"""Change of the score by an answer that is no legal move, which ends the game."""


class Hanabi:
    """A game with the given deck, whose first two cards are the players' cards."""

    def __init__(self, deck: str) -> None:
        first, second, *self.deck = deck.split()
        self.cards = [first, second]
        self.known = ["??", "??"]
        """Colour and rank that each player has been told of its card."""
        self.played = dict.fromkeys(COLOURS, 0)
        self.discarded: list[str] = []
        self.hints = HINTS
        self.mover = 0
        self.moves_left: int | None = None
        """Number of moves after the last draw."""
        self.last = "none"
        self.lost = False

    @property
    def score(self) -> int:
        """The number of played cards."""
        return sum(self.played.values())

    @property
    def ended(self) -> bool:
        return self.lost or self.moves_left == 0 or self.score == len(CARDS)

    def legal_moves(self) -> tuple[str, ...]:
        """Return the moves of the player whose turn it is."""
        if self.hints == 0:
            return MOVES[:2]
        return MOVES

    def show(self) -> str:
        """Return the observation of the player whose turn it is."""
        played = " ".join(f"{colour}{count}" for colour, count in self.played.items())
        partner = 1 - self.mover
        return (
            f"Played: {played}. Gone: {' '.join(self.discarded) or 'none'}. Hints: {self.hints}. "
            f"Deck: {len(self.deck)}. Partner: {self.cards[partner]}, told {self.known[partner]}. "
            f"You: told {self.known[self.mover]}. Last move: {self.last}. Your move:\n"
        )

    def move(self, move: str) -> None:
        """Make a legal move."""
        player = self.mover
        if self.moves_left is not None:
            self.moves_left -= 1
        if move in ("play", "discard"):
            self._put_down(player, move)
        else:
            partner = 1 - player
            self.hints -= 1
            card = self.cards[partner]
            told = self.known[partner]
            if move == "colour":
                self.known[partner] = card[0] + told[1]
            else:
                self.known[partner] = told[0] + card[1]
        self.last = move
        self.mover = 1 - player

    def _put_down(self, player: int, move: str) -> None:
        card = self.cards[player]
        if move == "discard":
            self.discarded.append(card)
            self.hints = min(HINTS, self.hints + 1)
        elif int(card[1]) == self.played[card[0]] + 1:
            self.played[card[0]] += 1
        else:
            self.lost = True
        self.known[player] = "??"
        self.cards[player] = "--"
        if self.deck:
            self.cards[player] = self.deck.pop(0)
            if not self.deck:
                self.moves_left = len(ROLES)


class Decks:
    """All 720 orders of the deck: `dataset.name: python:docs.examples.hanabi:DECKS`. Every seventh is held out."""

    @cached_property
    def splits(self) -> dict[str, list[dict[str, Any]]]:
        train = []
        held_out = []
        for number, deck in enumerate(itertools.permutations(CARDS)):
            row = {"task_id": f"deck/{number}", "prompt": " ".join(deck)}
            # Steps of 7 visit all first cards, as 7 has no factor in common with the 120 decks that share one.
            if number % 7 == 0:
                held_out.append(row)
            else:
                train.append(row)
        return {"train": train, "eval": held_out}


DECKS = Decks()


async def play(episode: Any) -> dict[str, Any]:
    """Play the deck of the task. Both agents are paid the score."""
    game = Hanabi(episode.task.prompt)
    illegal = 0.0
    while not game.ended and not illegal:
        answer = await episode.ask(ROLES[game.mover], game.show())
        move = answer.strip()
        if move in game.legal_moves():
            game.move(move)
        else:
            illegal = 1.0
    metrics = {"illegal": illegal, "lost": float(game.lost), "all_passed": float(game.score == len(CARDS))}
    return {"reward": game.score + ILLEGAL * illegal, "metrics": metrics}
