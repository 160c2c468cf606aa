"""Self-play of two tiny policies through the gateway: `python -m benchmarks.games kuhn` or `tic-tac-toe`.

A training run with `configs/toy_kuhn_poker.yaml` or `configs/toy_tic_tac_toe.yaml` is followed by exact measurements,
without sampling: the probabilities of all moves in all situations are read from the logits of the trained models.

- Kuhn poker: exploitability, the mean over both seats of the gain of a best response (nash_conv / 2, in units of the
  ante). A Nash equilibrium has 0, uniformly random play 0.458.
- Tic-tac-toe: probabilities to win, draw and lose against uniformly random moves, per seat, for sampled and for most
  likely moves. Uniformly random play wins 0.585 as first and 0.288 as second player.

`--run FOLDER` measures a finished run (a run folder or a folder with models/). Other arguments are overrides.
"""

from __future__ import annotations

import argparse
import itertools
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from docs.examples import kuhn_poker, tic_tac_toe
from marl_ray.plugins.games import KUHN_BASE_PATH, TIC_TAC_TOE_BASE_PATH

CONFIGS = {"kuhn": "configs/toy_kuhn_poker.yaml", "tic-tac-toe": "configs/toy_tic_tac_toe.yaml"}
BASES = {"kuhn": KUHN_BASE_PATH, "tic-tac-toe": TIC_TAC_TOE_BASE_PATH}
CELLS = tuple(tic_tac_toe.EMPTY)
Strategy = Mapping[tuple[str, tuple[str, ...]], float]
"""Probability of a bet by card and history."""


class MovePolicy:
    """The move probabilities of a model, at temperature 1. A move is the first token of an answer."""

    def __init__(self, path: Path | str) -> None:
        self.tokenizer: Any = AutoTokenizer.from_pretrained(path)
        self.model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()

    @torch.no_grad()
    def probabilities(self, prompts: Sequence[str], moves: Sequence[str]) -> torch.Tensor:
        """Return the probability [P, M] of each move after each prompt. Raises ValueError unless moves are tokens."""
        tokens = [self.tokenizer(move).input_ids for move in moves]
        if any(len(ids) != 1 for ids in tokens):
            raise ValueError(f"moves should be one token each: {dict(zip(moves, tokens, strict=True))}")
        parts = []
        for at in range(0, len(prompts), 256):
            batch = self.tokenizer(list(prompts[at : at + 256]), padding=True, padding_side="left", return_tensors="pt")
            logits = self.model(**batch).logits[:, -1].double()
            parts.append(logits.softmax(-1)[:, [ids[0] for ids in tokens]])
        return torch.cat(parts)


def strategy_of(policy: MovePolicy, seat: str) -> tuple[Strategy, float]:
    """Return a seat's strategy, given that a move is legal, and the largest probability of an illegal answer."""
    number = kuhn_poker.SEATS.index(seat)
    places = [(card, h) for card in kuhn_poker.CARDS for h in kuhn_poker.HISTORIES if len(h) % 2 == number]
    found = policy.probabilities([kuhn_poker.show(seat, place) for place in places], kuhn_poker.MOVES)
    legal = found.sum(-1)
    bets = (found[:, kuhn_poker.MOVES.index("bet")] / legal).tolist()
    return dict(zip(places, bets, strict=True)), float(1 - legal.min())


def kuhn_value(first: Strategy, second: Strategy) -> float:
    """Return the expected gain of the first player."""

    def value(deal: str, moves: tuple[str, ...]) -> float:
        gain = kuhn_poker.gain(deal, moves)
        if gain is not None:
            return float(gain)
        number = len(moves) % 2
        bet = (first, second)[number][deal[number], moves]
        return bet * value(deal, (*moves, "bet")) + (1 - bet) * value(deal, (*moves, "pass"))

    return fmean(value("".join(deal), ()) for deal in itertools.permutations(kuhn_poker.CARDS, 2))


def exploitability(first: Strategy, second: Strategy) -> float:
    """Return the mean gain of best responses to both strategies. Every deterministic response is tried.

    Example:
        >>> places = [(card, h) for card in kuhn_poker.CARDS for h in kuhn_poker.HISTORIES]
        >>> even = dict.fromkeys(places, 0.5)
        >>> round(exploitability(even, even), 3)
        0.458
    """

    def responses(number: int) -> list[Strategy]:
        places = [(card, h) for card in kuhn_poker.CARDS for h in kuhn_poker.HISTORIES if len(h) % 2 == number]
        return [dict(zip(places, bets, strict=True)) for bets in itertools.product((0.0, 1.0), repeat=len(places))]

    best_first = max(kuhn_value(response, second) for response in responses(0))
    best_second = max(-kuhn_value(first, response) for response in responses(1))
    return (best_first + best_second) / 2


def boards_of(seat: str) -> list[str]:
    """Return all boards on which a seat may have to move."""
    found, boards = [], {tic_tac_toe.EMPTY}
    for moves in range(9):
        if tic_tac_toe.SEATS[moves % 2] == seat:
            found += sorted(boards)
        placed = tic_tac_toe.SEATS[moves % 2]
        boards = {b.replace(cell, placed) for b in boards for cell in b if cell.isdecimal()}
        boards = {board for board in boards if not tic_tac_toe.has_line(board, placed)}
    return found


def board_moves(policy: MovePolicy, seat: str) -> torch.Tensor:
    """Return the probability [B, 9] of each cell on each of `boards_of(seat)`."""
    return policy.probabilities([tic_tac_toe.show(seat, board) for board in boards_of(seat)], CELLS)


def against_random(found: torch.Tensor, seat: str, greedy: bool = False) -> dict[str, float]:
    """Return the probabilities that a seat wins, draws, loses or moves illegally against uniformly random moves.
    `found` as returned by `board_moves`."""
    boards = boards_of(seat)
    if greedy:
        found = torch.nn.functional.one_hot(found.argmax(-1), len(CELLS)).double()
    moves = dict(zip(boards, found.tolist(), strict=True))

    @cache
    def play(board: str) -> tuple[float, float, float, float]:
        placed = tic_tac_toe.SEATS[sum(not cell.isdecimal() for cell in board) % 2]
        free = [cell for cell in board if cell.isdecimal()]
        chances = dict(zip(CELLS, moves[board], strict=True)) if placed == seat else dict.fromkeys(free, 1 / len(free))
        total = [0.0, 0.0, 0.0, max(0.0, 1 - sum(chances[cell] for cell in free))]
        for cell in free:
            after = board.replace(cell, placed)
            if tic_tac_toe.has_line(after, placed):
                result = (1.0, 0.0, 0.0, 0.0) if placed == seat else (0.0, 0.0, 1.0, 0.0)
            else:
                result = play(after) if len(free) > 1 else (0.0, 1.0, 0.0, 0.0)
            total = [so_far + chances[cell] * own for so_far, own in zip(total, result, strict=True)]
        return total[0], total[1], total[2], total[3]

    return dict(zip(("win", "draw", "loss", "illegal"), play(tic_tac_toe.EMPTY), strict=True))


def report(game: str, first: MovePolicy, second: MovePolicy) -> list[str]:
    """Return the measurements of two policies as lines."""
    if game == "kuhn":
        (one, illegal_one), (other, illegal_other) = strategy_of(first, "first"), strategy_of(second, "second")
        places = {
            (*place, seat): bet for seat, own in (("first", one), ("second", other)) for place, bet in own.items()
        }
        lines = [f"  {seat:6s} {card} {' '.join(h) or '-':9s} bet {bet:.3f}" for (card, h, seat), bet in places.items()]
        return [
            *lines,
            f"largest probability of an illegal answer: {max(illegal_one, illegal_other):.4f}",
            f"gain of the first player: {kuhn_value(one, other):.4f} (equilibrium: -0.0556)",
            f"exploitability: {exploitability(one, other):.4f}",
        ]
    found = [board_moves(policy, seat) for seat, policy in zip(tic_tac_toe.SEATS, (first, second), strict=True)]
    return [
        f"{seat} against random, {'most likely' if greedy else 'sampled'} moves: "
        + ", ".join(f"{name} {value:.4f}" for name, value in against_random(moves, seat, greedy).items())
        for seat, moves in zip(tic_tac_toe.SEATS, found, strict=True)
        for greedy in (False, True)
    ]


def trained_models(run: Path) -> list[Path]:
    """Return the folders of both agents' models."""
    return [run / "models" / f"agent_{number}" for number in (0, 1)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("game", choices=CONFIGS)
    parser.add_argument("--run", type=Path, help="measure this finished run")
    parser.add_argument("--output", type=Path, default=Path("runs"), help="folder of the new run")
    options, overrides = parser.parse_known_args()
    torch.set_num_threads(1)  # the models are tiny, and threads wait for each other on a busy machine
    base = MovePolicy(BASES[options.game])
    print("base policy", *report(options.game, base, base), sep="\n", flush=True)
    run, started = options.run, time.monotonic()
    if run is None:
        name = f"{options.game}-{int(time.time())}"
        own = [f"output.base_dir={options.output}", f"output.run_name={name}", *overrides]
        command = [sys.executable, "-m", "marl_ray.train_magrpo", "--config", CONFIGS[options.game], "--override", *own]
        subprocess.run(command, check=True)
        run = options.output / name
        print(f"training took {time.monotonic() - started:.0f} s")
    first, second = map(MovePolicy, trained_models(run))
    print("trained policies", *report(options.game, first, second), sep="\n", flush=True)


if __name__ == "__main__":
    main()
