"""Two agents tell each other their cards, and then name the card of the other. The program knows nothing of training.

environment: gateway
gateway: {function: "relay:play", roles: [first, second]}

Each player holds J or K, and sees all moves so far. The first two moves are messages. With the third move the first
player says whether the second holds K (bet) or J (pass), and with the fourth the second player says it of the first.
The reward is the share of right answers. Without messages it is one half, whatever the players do.
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


def names(move: str, card: str) -> bool:
    """Return whether a move names a card: bet for K, and pass for J."""
    return (move == "bet") == (card == "K")


def result(rewards: list[float], right: list[bool]) -> dict[str, Any]:
    """Return a reward, and whether the answers of both players are right."""
    first, second = map(float, right)
    metrics = {"first_right": first, "second_right": second, "all_passed": first * second}
    return {"reward": sum(rewards), "metrics": metrics}


async def play(episode: Any) -> dict[str, Any]:
    """Play the cards of the task."""
    cards = episode.task.prompt
    moves: list[str] = []
    for number in range(MOVES):
        seat = number % len(SEATS)
        answer = await episode.ask(SEATS[seat], show(cards[seat], moves))
        moves.append(read(answer))
    right = [names(moves[2], cards[1]), names(moves[3], cards[0])]
    return result([0.5 * right[0], 0.5 * right[1]], right)


async def play_loud(episode: Any) -> dict[str, Any]:
    """Play a shorter game: both players name the card of the first one, who counts five times. The second player sees
    the first one's move, and nothing else that tells the card."""
    cards = episode.task.prompt
    first = read(await episode.ask("first", show(cards[0], [])))
    second = read(await episode.ask("second", show(cards[1], [first])))
    right = [names(first, cards[0]), names(second, cards[0])]
    return result([5.0 * right[0], 1.0 * right[1]], right)
