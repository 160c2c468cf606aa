"""Train the base policy of two games, `bundled:toy-games-base`: `python -m tools.toy.make_games`.

The policy is a Qwen2 of 0.2 M parameters with a byte-level BPE, trained from scratch on the prompts of
`docs/examples/kuhn_poker.py` and `docs/examples/tic_tac_toe.py` with uniformly random legal moves as answers. It knows
the rules of both games and has no skill: every legal move is about equally likely.
"""

from __future__ import annotations

import argparse
import random
import shutil
import tempfile
from pathlib import Path

import torch

from docs.examples import kuhn_poker, tic_tac_toe
from marl_ray.toy import GAMES_BASE_PATH
from tools.toy.make_base import make_tokenizer, tokenise, train
from tools.toy.make_grid import make_small_model
from tools.toy.scenes import Scene

VOCAB_SIZE = 320


def kuhn_scenes() -> list[Scene]:
    """Return the prompts of all information sets, each with both moves."""
    return [
        Scene(kuhn_poker.show("first", (card, history)), kuhn_poker.MOVES)
        for card in kuhn_poker.CARDS
        for history in kuhn_poker.HISTORIES
    ]


def board_scenes(count: int, rng: random.Random) -> list[Scene]:
    """Return boards of random games, each with its free cells."""
    found: list[Scene] = []
    while len(found) < count:
        game = tic_tac_toe.TicTacToe()
        game.reset()
        while not game.ended:
            free = [cell for cell in game.board if cell.isdecimal()]
            found.append(Scene(tic_tac_toe.show(tic_tac_toe.SEATS[game.moves % 2], game.board), tuple(free)))
            game.step(int(rng.choice(free)))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=GAMES_BASE_PATH)
    parser.add_argument("--steps", type=int, default=1200)
    parser.add_argument("--boards", type=int, default=6000)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    rng = random.Random(args.seed)
    scenes = board_scenes(args.boards, rng) + kuhn_scenes() * (args.boards // 60)
    with tempfile.TemporaryDirectory() as staging:
        folder = Path(staging)
        tokenizer = make_tokenizer([t for scene in scenes for t in (scene.prompt, *scene.responses)], folder, VOCAB_SIZE)
        model = make_small_model(tokenizer)
        losses: list[float] = []

        def report(step: int, loss: float) -> None:
            losses.append(loss)
            if step % 100 == 0:
                print(f"step {step:5d}  loss {sum(losses[-100:]) / 100:.4f}", flush=True)

        tokens = tokenise(tokenizer, scenes)
        print(f"{sum(p.numel() for p in model.parameters()):,} parameters, prompts of {len(tokens[0].prompt)} tokens")
        pad = tokenizer.pad_token_id
        train(model, tokens, pad=pad, steps=args.steps, batch_size=32, peak_lr=1e-3, seed=args.seed, report=report)
        model.config.use_cache = True
        model.save_pretrained(folder)
        args.out.mkdir(parents=True, exist_ok=True)
        for file in folder.iterdir():
            shutil.copyfile(file, args.out / file.name)


if __name__ == "__main__":
    main()
