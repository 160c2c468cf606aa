"""The share of weights that change per optimizer step, and the savings of sending only these.

    python -m benchmarks.sparse_weight_sync [--model bundled:smollm2-135m] [--steps 4] [--rates 1e-6 3e-5]

A real learner (float32 weights, AdamW) learns from the base model's answers to one prompt, with random advantages.
After each step its weights are compared with the previously sent weights, in bfloat16 and in float32. The table has one
line per step and dtype: the share of changed weights, the bytes of the message and of all weights, and the seconds to
copy all weights (`Snapshot.reset`), to find the changes (`Snapshot.diff`) and to apply them (`Snapshot.apply`). AdamW's
first step moves every weight by the whole learning rate, later steps move weights by less.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Iterator
from typing import Any

import torch

from marl_ray.config import ModelConfig, from_tree
from marl_ray.core.batch import Batch, Group, MiniBatch
from marl_ray.core.episode import Completion, sibling_calls
from marl_ray.learning.arguments import learner_arguments
from marl_ray.learning.learner import Learner
from marl_ray.learning.policy_model import load_policy
from marl_ray.models.names import resolve_model
from marl_ray.models.tokenization import load_tokenizer
from marl_ray.weights.deltas import Snapshot, WeightUpdate
from marl_ray.weights.sender import CastSource

PROMPT = "def is_prime(number):\n    "
SAMPLES, TOKENS = 4, 32
DTYPES = (torch.bfloat16, torch.float32)


def make_learner(model: str, rate: float, steps: int) -> Learner:
    """Return the learner of a run with one agent, this learning rate and otherwise default settings."""
    tree = {
        "model": {"name": model, "max_length": 512},
        "dataset": {"name": "bundled:toy"},
        "grpo": {"learning_rate": rate},
        "resources": {"learner": {"cpus": torch.get_num_threads()}},
    }
    config = from_tree(tree, "grpo")
    return Learner(*learner_arguments(config, config.policies[0], steps))


def batches(model: str, steps: int) -> Iterator[Batch]:
    """Yield one batch per step: a group of the base model's completions of one prompt, with random advantages."""
    path = resolve_model(model)
    ids = load_tokenizer(path, ModelConfig())(PROMPT, return_tensors="pt").input_ids
    prompt, draw = tuple(ids[0].tolist()), random.Random(0)
    torch.manual_seed(0)
    policy: Any = load_policy(path, False, torch.device("cpu"))
    with torch.no_grad():
        sampled = policy.generate(ids, do_sample=True, max_new_tokens=TOKENS, num_return_sequences=SAMPLES * steps)
    for step in range(steps):
        rows = sampled[step * SAMPLES : (step + 1) * SAMPLES, len(prompt) :].tolist()
        completions = tuple(Completion(tuple(row), "", (0.0,) * len(row), "length", ((0, len(row)),)) for row in rows)
        advantages = tuple(draw.uniform(-1, 1) for _ in rows)
        yield Batch(step, (MiniBatch((Group(0, sibling_calls(prompt, completions), advantages, advantages),), 1),))


def measure(model: str, rate: float, steps: int) -> Iterator[str]:
    """Yield one table line per step and dtype."""
    all_batches = list(batches(model, steps))
    learner = make_learner(model, rate, steps)
    sources = {dtype: CastSource(learner.policy, dtype) for dtype in DTYPES}
    bases = {dtype: (Snapshot(), Snapshot()) for dtype in DTYPES}
    for dtype, source in sources.items():
        for base in bases[dtype]:
            list(base.reset(source))
    for batch in all_batches:
        learner.update(batch)
        for dtype, source in sources.items():
            sender, receiver = bases[dtype]
            started = time.perf_counter()
            total_bytes = sum(tensor.nbytes for _, tensor in Snapshot().reset(source))
            copied = time.perf_counter()
            message = WeightUpdate(list(sender.diff(source)))
            compared = time.perf_counter()
            for _ in receiver.apply(message.deltas):
                pass
            done = time.perf_counter()
            yield (
                f"{rate:>8.0e} {batch.step + 1:>5} {str(dtype).removeprefix('torch.'):>9} {sender.changed:>9.2%} "
                f"{message.nbytes / 1e6:>9.1f} {total_bytes / 1e6:>9.1f} {message.nbytes / total_bytes:>7.3f} "
                f"{copied - started:>7.2f} {compared - copied:>7.2f} {done - compared:>7.2f}"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="bundled:smollm2-135m")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--rates", type=float, nargs="+", default=[1e-6, 3e-5])
    arguments = parser.parse_args()
    print(f"{'rate':>8} {'step':>5} {'dtype':>9} {'changed':>9} {'sent MB':>9} {'all MB':>9} {'ratio':>7} ", end="")
    print(f"{'copy s':>7} {'diff s':>7} {'apply s':>7}")
    for rate in arguments.rates:
        for line in measure(arguments.model, rate, arguments.steps):
            print(line, flush=True)


if __name__ == "__main__":
    main()
