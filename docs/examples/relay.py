"""Two agents tell each other their cards, and then name the card of the other. The program knows nothing of training.

environment: gateway
gateway: {function: "relay:play", roles: [first, second]}

Each player holds J or K, and sees all moves so far. The first two moves are messages. With the third move the first
player says whether the second holds K (bet) or J (pass), and with the fourth the second player says it of the first.
The reward is the number of right answers, 0 to 2. Without messages it is 1, whatever the players do.
"""

from typing import Any

SEATS = ("first", "second")
MOVES = 4


def show(card: str, moves: list[str]) -> str:
    """Return the prompt of a move: the own card and all moves so far."""
    return f"Your card: {card}. Moves: {' '.join(moves) or 'none'}. Your move, pass or bet:\n"


def read(answer: str) -> str:
    """Return the move in an answer. Any other answer counts as a pass."""
    return "bet" if answer.strip() == "bet" else "pass"


def score(cards: str, moves: list[str]) -> dict[str, float]:
    """Return whether the answers are right, by seat. `cards` are the cards of both players."""
    right = {}
    for seat, move, card in zip(SEATS, moves[2:], reversed(cards), strict=True):
        right[seat] = float((move == "bet") == (card == "K"))
    return right


async def play(episode: Any) -> dict[str, Any]:
    """Play the cards of the task."""
    cards = episode.task.prompt
    moves: list[str] = []
    for number in range(MOVES):
        seat = number % len(SEATS)
        answer = await episode.ask(SEATS[seat], show(cards[seat], moves))
        moves.append(read(answer))
    right = score(cards, moves)
    return {"reward": sum(right.values()), "metrics": {f"{seat}_right": value for seat, value in right.items()}}
