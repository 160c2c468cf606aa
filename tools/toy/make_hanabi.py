"""Train the base policy of small Hanabi, `bundled:toy-hanabi-base`: `python -m tools.toy.make_hanabi`.

The policy is a Qwen2 of 0.2 M parameters with a byte-level BPE, trained from scratch on the prompts of
`docs/examples/hanabi.py`. It knows the rules and plays badly: after clean demonstrations of `careful_move`, half of the
moves in the demonstrations are uniformly random legal ones.
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path

from docs.examples.hanabi import CARDS, DECKS, Hanabi
from marl_ray.plugins.games import HANABI_BASE_PATH
from tools.toy.make_grid import make_policy, parse_and_seed
from tools.toy.scenes import Scene

WANDERS = 0.4
"""Share of random moves on the way to a scene, so that scenes are of many situations."""


def fits(card: str, told: str) -> bool:
    """Return whether a card may be the card that a player has been told this of."""
    return all(known in ("?", symbol) for known, symbol in zip(told, card, strict=True))


def careful_move(game: Hanabi) -> str:
    """Return the move of a player without conventions.

    A card that can be played whatever it is, is played. Else the partner is told the unknown colour or rank of a card
    that it can play. Else a card that can never be played is discarded, or a hint is given, or the card is discarded.
    """
    player = game.mover
    partner = 1 - player
    possible = [card for card in CARDS if fits(card, game.known[player]) and card != game.cards[partner]]
    possible = [card for card in possible if card not in game.discarded and int(card[1]) > game.played[card[0]]]
    playable = [card for card in possible if int(card[1]) == game.played[card[0]] + 1]
    if possible and len(playable) == len(possible):
        return "play"
    card = game.cards[partner]
    told = game.known[partner]
    if game.hints and card in CARDS and int(card[1]) == game.played[card[0]] + 1:
        if told[1] == "?":
            return "rank"
        if told[0] == "?":
            return "colour"
    if game.hints and possible:
        return "rank" if told[1] == "?" else "colour"
    return "discard"


def scenes(count: int, skill: float, demonstrations: int, rng: random.Random) -> list[Scene]:
    """Return at least `count` scenes of games with training decks. `skill` is the share of careful moves."""
    found: list[Scene] = []
    decks = DECKS.splits["train"]
    while len(found) < count:
        game = Hanabi(rng.choice(decks)["prompt"])
        while not game.ended:
            best = careful_move(game)
            answers = []
            for _ in range(demonstrations):
                answers.append(best if rng.random() < skill else rng.choice(game.legal_moves()))
            found.append(Scene(game.show(), tuple(answers)))
            game.move(rng.choice(game.legal_moves()) if rng.random() < WANDERS else best)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=HANABI_BASE_PATH)
    args = parse_and_seed(parser)
    rng = random.Random(args.seed)
    stages = [(scenes(12000, 1.0, 1, rng), 700, 1e-3), (scenes(8000, 0.5, 4, rng), 250, 5e-4)]
    make_policy(stages, args.out, args.seed)


if __name__ == "__main__":
    main()
