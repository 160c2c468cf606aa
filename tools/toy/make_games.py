"""Train the base policy of a game: `python -m tools.toy.make_games kuhn` or `tic-tac-toe`. `bundled:toy-kuhn-base` is
trained for shorter than `bundled:toy-tic-tac-toe-base`, since self-play of Kuhn poker diverges from the longer one.

Both policies are a Qwen2 of 0.2 M parameters with a byte-level BPE, trained from scratch on the prompts of
`docs/examples/kuhn_poker.py` and `docs/examples/tic_tac_toe.py`. They know the rules of both games and play them badly:

- Kuhn poker: half of the moves bet with K and pass with J, whatever happens; the others are uniformly random.
- Tic-tac-toe: a third of the moves completes an own line or blocks a line, where possible; the others are uniformly
  random free cells.

Before these noisy demonstrations come clean ones. Without them a model of this size does not look at the card or the
lines, and then self-play changes all situations together.
"""

from __future__ import annotations

import argparse
import random
from dataclasses import dataclass
from pathlib import Path

from docs.examples import kuhn_poker, tic_tac_toe
from marl_ray.plugins.games import KUHN_BASE_PATH, TIC_TAC_TOE_BASE_PATH
from tools.toy.make_grid import make_policy, parse_and_seed
from tools.toy.scenes import Scene

DEMONSTRATIONS = 4
"""Answers per prompt."""


@dataclass(frozen=True, slots=True)
class Training:
    """Folder of a policy, steps on clean and on noisy demonstrations, and number of boards in each."""

    path: Path
    steps: int
    noisy_steps: int
    boards: int


TRAININGS = {
    "kuhn": Training(KUHN_BASE_PATH, 1000, 400, 6000),
    "tic-tac-toe": Training(TIC_TAC_TOE_BASE_PATH, 3000, 800, 12000),
}


def kuhn_scenes(count: int, skill: float, rng: random.Random) -> list[Scene]:
    """Return the prompts of all information sets, `count` times each. `skill` is the share of moves by card."""

    def move(card: str, history: tuple[str, ...]) -> str:
        if rng.random() >= skill:
            return rng.choice(kuhn_poker.MOVES)
        bets = card == "K" or (card == "Q" and "bet" not in history)
        return "bet" if bets else "pass"

    return [
        Scene(kuhn_poker.show("first", (card, history)), tuple(move(card, history) for _ in range(DEMONSTRATIONS)))
        for _ in range(count)
        for card in kuhn_poker.CARDS
        for history in kuhn_poker.HISTORIES
    ]


def board_scenes(count: int, skill: float, rng: random.Random) -> list[Scene]:
    """Return boards of random games, two of three with a line to complete or to block. `skill` is the share of moves
    that do so."""
    found: list[Scene] = []
    while len(found) < count:
        game = tic_tac_toe.TicTacToe()
        game.reset()
        while not game.ended:
            seat = tic_tac_toe.SEATS[game.moves % 2]
            free = [cell for cell in game.board if cell.isdecimal()]
            best = tactical_cells(game.board, seat)
            if best or rng.random() < 0.4:
                moves = (rng.choice(best if best and rng.random() < skill else free) for _ in range(DEMONSTRATIONS))
                found.append(Scene(tic_tac_toe.show(seat, game.board), tuple(moves)))
            game.step(int(rng.choice(free)))
    return found


def tactical_cells(board: str, seat: str) -> list[str]:
    """Return the cells that complete a line of the seat, or else the cells that block a line of the other seat."""
    other = tic_tac_toe.SEATS[1 - tic_tac_toe.SEATS.index(seat)]
    for player in (seat, other):
        cells = [
            cell for cell in board if cell.isdecimal() and tic_tac_toe.has_line(board.replace(cell, player), player)
        ]
        if cells:
            return cells
    return []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("game", choices=TRAININGS)
    parser.add_argument("--out", type=Path, help="default: the folder in the package")
    args = parse_and_seed(parser)
    rng = random.Random(args.seed)
    training = TRAININGS[args.game]
    stages = [
        (board_scenes(training.boards, board, rng) + kuhn_scenes(training.boards // 60, card, rng), steps, peak_lr)
        for board, card, steps, peak_lr in (
            (1.0, 1.0, training.steps, 1e-3),
            (1 / 3, 1 / 2, training.noisy_steps, 5e-4),
        )
    ]
    make_policy(stages, args.out or training.path, args.seed)


if __name__ == "__main__":
    main()
