"""Exact measurements of policies of Kuhn poker and tic-tac-toe, without sampling.

The probabilities of all moves in all situations are read from the logits of the models.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from docs.examples import kuhn_poker, tic_tac_toe

CELLS = tuple(tic_tac_toe.EMPTY)
KINDS = ("sampled", "most likely")
"""Moves drawn from a policy's probabilities, and its most likely moves."""
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


def kuhn_measures(first: MovePolicy, second: MovePolicy) -> dict[str, float]:
    """Return exploitability and gain of the first player, in units of the ante, and the largest probability of an
    illegal answer in any situation."""
    strategy_first, illegal_first = strategy_of(first, "first")
    strategy_second, illegal_second = strategy_of(second, "second")
    return {
        "exploitability": exploitability(strategy_first, strategy_second),
        "gain": kuhn_value(strategy_first, strategy_second),
        "illegal": max(illegal_first, illegal_second),
    }


def tic_tac_toe_measures(first: MovePolicy, second: MovePolicy) -> dict[str, float]:
    """Return the probabilities of the ends of games against uniformly random moves, by seat, kind of moves and end:
    `X most likely win`."""
    found = {}
    for seat, policy in zip(tic_tac_toe.SEATS, (first, second), strict=True):
        moves = board_moves(policy, seat)
        for kind in KINDS:
            for end, chance in against_random(moves, seat, greedy=kind == "most likely").items():
                found[f"{seat} {kind} {end}"] = chance
    return found
