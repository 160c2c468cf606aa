"""The updates of configs/toy_kuhn_poker.yaml without engines, to compare settings.

    python -m benchmarks.games.kuhn_simulation

Both policies are the bundled transformer. Moves are drawn from the exact probabilities of all 12 situations. The loss
is that of the learner: returns less the mean of the siblings, entropy bonus, clipped gradient, AdamW and linear decay.
A step takes 0.06 s of processor time. All illegal answers are one move. Random numbers differ from a run's.
"""

from __future__ import annotations

import argparse
import itertools
import random
from collections import Counter

import torch

from benchmarks.games.exact import MovePolicy, exploitability, strategy_of
from docs.examples import kuhn_poker
from marl_ray.plugins.games import KUHN_BASE_PATH

DEALS = ["".join(deal) for deal in itertools.permutations(kuhn_poker.CARDS, 2)]
PLACES: list[list[tuple[str, tuple[str, ...]]]] = [
    [(card, history) for card in kuhn_poker.CARDS for history in kuhn_poker.HISTORIES if len(history) % 2 == seat]
    for seat in (0, 1)
]
ILLEGAL, ILLEGAL_REWARD = len(kuhn_poker.MOVES), -2.0
Call = tuple[int, int, int]
"""Seat, place and move."""


class Seat:
    """A policy in training, with the prompts of all places of its seat."""

    def __init__(self, number: int, options: argparse.Namespace) -> None:
        self.policy, self.name = MovePolicy(KUHN_BASE_PATH), kuhn_poker.SEATS[number]
        prompts = [kuhn_poker.show(self.name, place) for place in PLACES[number]]
        tokenizer = self.policy.tokenizer
        self._batch = tokenizer(prompts, padding=True, padding_side="left", return_tensors="pt")
        self._moves = [tokenizer(move).input_ids[0] for move in kuhn_poker.MOVES]
        self._options = options
        betas = (options.beta1, 0.999)
        parameters = self.policy.model.parameters()
        self._optimizer = torch.optim.AdamW(parameters, lr=options.rate, betas=betas, weight_decay=0.0)

    def logprobs(self) -> torch.Tensor:
        """Return the log-probability [P, V] of every token at every place."""
        logprobs: torch.Tensor = self.policy.model(**self._batch).logits[:, -1].log_softmax(-1)
        return logprobs

    def probabilities(self) -> list[list[float]]:
        """Return the probability [P, M] of every move at every place."""
        with torch.no_grad():
            found: list[list[float]] = self.logprobs()[:, self._moves].double().exp().tolist()
        return found

    def learn(self, weights: Counter[tuple[int, int]], visits: Counter[int], step: int) -> None:
        """Take a step. `weights`: factors of log-probabilities by (place, move); `visits`: shares of places."""
        logprobs = self.logprobs()
        illegal = (1 - logprobs[:, self._moves].exp().sum(-1)).clamp_min(1e-6).log()
        loss = torch.zeros(())
        for (place, move), weight in weights.items():
            loss = loss - weight * (illegal[place] if move == ILLEGAL else logprobs[place, self._moves[move]])
        for place, share in visits.items():
            loss = loss + self._options.entropy * share * (logprobs[place].exp() * logprobs[place]).sum()
        self._optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.policy.model.parameters(), 1.0)
        for group in self._optimizer.param_groups:
            group["lr"] = self._options.rate * (1 - step / self._options.steps)
        self._optimizer.step()


def play(deal: str, chances: list[list[list[float]]], rng: random.Random) -> tuple[list[Call], list[float]]:
    """Return the calls of a game and both rewards."""
    moves, calls = tuple[str, ...](), list[Call]()
    while (gain := kuhn_poker.gain(deal, moves)) is None:
        seat = len(moves) % 2
        place = PLACES[seat].index((deal[seat], moves))
        first, second = chances[seat][place]
        drawn = rng.random()
        move = 0 if drawn < first else 1 if drawn < first + second else ILLEGAL
        calls.append((seat, place, move))
        if move == ILLEGAL:
            return calls, [ILLEGAL_REWARD, 0.0] if seat == 0 else [0.0, ILLEGAL_REWARD]
        moves = (*moves, kuhn_poker.MOVES[move])
    return calls, [float(gain), float(-gain)]


def simulate(options: argparse.Namespace) -> None:
    rng = random.Random(options.seed)
    seats = [Seat(number, options) for number in (0, 1)]
    for step in range(options.steps):
        chances = [seat.probabilities() for seat in seats]
        weights: list[Counter[tuple[int, int]]] = [Counter(), Counter()]
        visits: list[Counter[int]] = [Counter(), Counter()]
        share = 1 / (len(DEALS) * options.games)
        for deal in DEALS:
            games = [play(deal, chances, rng) for _ in range(options.games)]
            means = [sum(rewards[seat] for _, rewards in games) / len(games) for seat in (0, 1)]
            for calls, rewards in games:
                for seat, place, move in calls:
                    weights[seat][place, move] += (rewards[seat] - means[seat]) * share
                    visits[seat][place] += share
        for learner, of_moves, of_places in zip(seats, weights, visits, strict=True):
            learner.learn(of_moves, of_places, step)
        if (step + 1) % options.every == 0:
            found = [strategy_of(seat.policy, seat.name) for seat in seats]
            value = exploitability(found[0][0], found[1][0])
            print(
                f"step {step + 1}: exploitability {value:.4f}, illegal {max(found[0][1], found[1][1]):.4f}", flush=True
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=2e-4)
    parser.add_argument("--steps", type=int, default=240)
    parser.add_argument("--games", type=int, default=16, help="games per deal and step")
    parser.add_argument("--entropy", type=float, default=0.15)
    parser.add_argument("--beta1", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--every", type=int, default=60, help="steps between measurements")
    options = parser.parse_args()
    torch.set_num_threads(1)
    simulate(options)


if __name__ == "__main__":
    main()
