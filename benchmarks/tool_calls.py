"""Two agents of a tiny policy learn to call a tool: `python -m benchmarks.tool_calls --results FOLDER`.

Each agent is asked how many pieces of a part are in stock. The number is a digit of a hash, so only the tool `stock_of`
tells it: a guess is right in a tenth of the cases. First a warm start on written conversations teaches both ways to
answer, a call in a third of the cases and a guess in the others. Then a run with `environment: tool_use` trains the
policy, with the share of right numbers as its reward. Evaluations have parts that occur in no training.

The table shows the evaluations of the run. No conversation is rewritten if all were trained as they were sampled.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import marl_ray as mr
from marl_ray.config import from_keywords
from marl_ray.plugins.gateway.tool_use.tool_loop import DESCRIPTION
from marl_ray.plugins.gateway.tool_use.tools import function_schema
from marl_ray.plugins.preferences.command import WarmStartRequest
from marl_ray.plugins.preferences.warm_start import warm_start
from marl_ray.storage.run_folder import RunFolder

CALLS_IN_DEMONSTRATIONS = 1 / 3
HERE = "benchmarks.tool_calls"
PARTS = list(range(100, 1000))
"""Numbers of parts: three digits, each of which is a token."""
random.Random(0).shuffle(PARTS)
TRAIN, EVAL = PARTS[:-64], PARTS[-64:]


def stock_of(part: int) -> int:
    """Return the pieces in stock."""
    return hashlib.sha256(str(part).encode()).digest()[0] % 10


def prompt(part: int) -> str:
    return f"How many pieces of part {part} are in stock? Answer with one digit.\n"


def pairs(parts: Sequence[int], count: int) -> list[dict[str, object]]:
    """Return rows with a part for each agent."""
    rng = random.Random(len(parts))
    drawn = [rng.sample(parts, 2) for _ in range(count)]
    return [{"prompt": [prompt(part) for part in both], "parts": both} for both in drawn]


def share_right(prompt: object, answers: list[str], parts: list[int]) -> float:
    """Return the share of agents with the right number."""
    return sum(a.strip() == str(stock_of(part)) for a, part in zip(answers, parts, strict=True)) / len(parts)


STOCK = mr.RewardEnvironment(
    prompts=pairs(TRAIN, 96), eval_prompts=pairs(EVAL, 32), reward=share_right, agents=["first", "second"]
)


def demonstrations(count: int) -> list[dict[str, object]]:
    """Return answers for `marl-ray warmstart`, of `count` conversations: a guess, or a call and the number after its
    result, each with the conversation before it as the prompt."""
    rng, opening = random.Random(1), DESCRIPTION.format(functions=json.dumps(function_schema(stock_of)))
    written = []
    for _ in range(count):
        part = rng.choice(TRAIN)
        asked = opening + prompt(part)
        if rng.random() < CALLS_IN_DEMONSTRATIONS:
            call = f"<tool_call>\n{json.dumps({'name': 'stock_of', 'arguments': {'part': part}})}\n</tool_call>"
            number = str(stock_of(part))
            told = f"<|endoftext|>\n\n<tool_response>\n{number}\n</tool_response>"
            written += [(asked, call), (asked + call + told, number)]
        else:
            written.append((asked, str(rng.randrange(10))))
    rng.shuffle(written)
    both = zip(written[::2], written[1::2], strict=False)
    return [{"prompts": [a[0], b[0]], "completions": [a[1], b[1]]} for a, b in both]


def settings(results: Path, steps: int, seed: int) -> dict[str, Any]:
    """Return the settings of the run."""
    return {
        "seed": seed,
        "model": {"name": "bundled:toy-revising-base", "max_length": 1024},
        "environment": "tool_use",
        "tool_use": {"environment": f"{HERE}:STOCK", "tools": [f"{HERE}:stock_of"], "max_tool_calls": 1},
        "dataset": {
            "name": f"python:{HERE}:STOCK",
            "type": "prompts",
            "train_split": "train",
            "eval_split": "eval",
        },
        "num_agents": 2,
        "agents": [{}, {"policy": 0}],
        "num_generations": 8,
        "rollout_buffer_size": 8,
        "max_new_tokens": 72,
        "max_steps": steps,
        "learning_rate": 2e-4,
        "eval_interval": steps,
        "eval_num_generations": 4,
        "output": {"base_dir": str(results), "run_name": "tools"},
        "resources": {"generator": {"cpus": 0.5}, "learner": {"cpus": 0.5}, "sandbox": {"workers": 1, "cpus": 0.25}},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, required=True, help="new folder")
    parser.add_argument("--conversations", type=int, default=3000)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    options.results.mkdir(parents=True)
    answers = options.results / "answers.jsonl"
    answers.write_text(
        "".join(json.dumps(line) + "\n" for line in demonstrations(options.conversations)), encoding="utf-8"
    )
    config = settings(options.results, options.steps, options.seed)
    request = WarmStartRequest(
        to=options.results / "warm",
        answers=answers,
        epochs=options.epochs,
        batch_size=16,
        learning_rate=2e-3,
        held_out=0.05,
    )
    print(warm_start(from_keywords(None, "magrpo", config, {}), request))
    run = mr.train(RunFolder(request.to).config)
    print("| step | right numbers | calls per answer | failed calls |")
    print("|---|---|---|---|")
    for row in run.metrics:
        if "eval/turn_1/reward_mean" in row:
            found = [row[f"eval/turn_1/{name}"] for name in ("reward_mean", "tool_calls", "tool_failures")]
            print(f"| {row['step']} | {' | '.join(f'{value:.2f}' for value in found)} |")
    steps = [row for row in run.metrics if "gateway/calls" in row]
    calls, rewritten = (sum(row[f"gateway/{name}"] for row in steps) for name in ("calls", "rewritten"))
    gap = max(row.get("policy_0/logprob_gap", 0.0) for row in steps)
    print(f"{calls} completions in training, {rewritten} rewritten; largest logprob_gap {gap:.1g}")


if __name__ == "__main__":
    main()
