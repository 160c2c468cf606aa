"""Write `bundled:roll-call` and train its base policy, `bundled:toy-roll-call-base`:
`python -m tools.toy.make_roll_call`.

The tasks are deterministic: 16 rows of two letters from a, b, c and d, uniformly random. The policy is a Qwen2 of
0.04 M parameters with a byte-level BPE, trained from scratch on the prompts of all 16 writers. Clean demonstrations
come first. In the noisy ones after them a share SKILL of the cells is copied, and the others are random.
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path

from marl_ray.plugins.roll_call import CALLS_PATH, ROLL_CALL_BASE_PATH
from marl_ray.plugins.roll_call.environment import RollCall
from marl_ray.plugins.roll_call.rows import ROLL_CALL
from tools.toy.make_grid import make_policy, parse_and_seed
from tools.toy.scenes import Scene

ROWS = 16
WIDTH = 2
LETTERS = "abcd"
SPLITS = {"train": 192, "eval": 64}
DEMONSTRATIONS = 8
"""Answers per prompt."""
SKILL = 0.4
"""Share of cells that are copied; a quarter of the others is right by chance."""


def call_rows(seed: int = 0) -> list[dict[str, object]]:
    """Return the rows of the bundled data set."""
    rng = random.Random(seed)
    rows: list[dict[str, object]] = []
    for split, count in SPLITS.items():
        for number in range(count):
            letters = ["".join(rng.choices(LETTERS, k=WIDTH)) for _ in range(ROWS)]
            rows.append({"task_id": f"roll_call/{split}-{number}", "rows": letters, "split": split})
    return rows


def scenes(count: int, skill: float, rng: random.Random) -> list[Scene]:
    """Return the scenes of `count` roll calls. `skill` is the share of copied cells; the others are random."""
    environment = RollCall(ROWS)
    found = []
    for _ in range(count):
        rows = ["".join(rng.choices(LETTERS, k=WIDTH)) for _ in range(ROWS)]
        task = ROLL_CALL.task({"rows": rows}, 0)
        for prompt, row in zip(environment.first_prompts(task), rows, strict=True):
            answers = []
            for _ in range(DEMONSTRATIONS):
                written = [letter if rng.random() < skill else rng.choice(LETTERS) for letter in row]
                answers.append(" ".join(written))
            found.append(Scene(prompt, tuple(answers)))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROLL_CALL_BASE_PATH)
    parser.add_argument("--steps", type=int, default=500, help="steps on clean demonstrations")
    parser.add_argument("--noisy-steps", type=int, default=200)
    parser.add_argument("--calls", type=int, default=200)
    args = parse_and_seed(parser)
    CALLS_PATH.write_text("".join(json.dumps(row) + "\n" for row in call_rows()), encoding="utf-8")
    rng = random.Random(args.seed)
    stages = [
        (scenes(args.calls, 1.0, rng), args.steps, 2e-3),
        (scenes(args.calls, SKILL, rng), args.noisy_steps, 1e-3),
    ]
    make_policy(stages, args.out, args.seed, width=32, layers=2)


if __name__ == "__main__":
    main()
