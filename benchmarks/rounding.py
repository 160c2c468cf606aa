"""How much of the difference between engine and learner in bfloat16 is rounding.

    python -m benchmarks.rounding [--model bundled:smollm2-135m]

An engine samples in bfloat16 on the CPU, with vLLM's kernels. A learner scores the same tokens twice: computing in
bfloat16 as on a GPU, and in float32. Rounding errors of independent kernels add in squares. If both sides only round,
the root mean square of their difference is therefore that of a triangle:

    (engine - learner)^2 = (engine - float32)^2 + (learner - float32)^2

The table has the mean absolute differences in nats per token, as `agent_i/logprob_gap`, and their root mean squares.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import os
from collections.abc import Mapping, Sequence

import torch

from marl_ray.actors.engine_environment import engine_environment

PROMPTS = (
    "def is_prime(number):\n    ",
    "The three largest cities of France are",
    "import json\n\n\ndef read_lines(path):\n    ",
    "Once upon a time, in a small village by the sea,",
)
SAMPLES, TOKENS, MAX_LENGTH = 16, 48, 512


def sample(model: str) -> list:
    """Return a group of completions per prompt, sampled by a bfloat16 engine in this process."""
    from marl_ray.actors.engine import Engine
    from marl_ray.actors.engine_arguments import EngineSpec
    from marl_ray.config import ModelConfig
    from marl_ray.core.batch import Group
    from marl_ray.core.episode import SamplingSpec, sibling_calls
    from marl_ray.models.tokenization import load_tokenizer

    tokenizer = load_tokenizer(model, ModelConfig())
    spec = EngineSpec(model, "bfloat16", MAX_LENGTH, False, False, 1, 0.5, 256, 64, "store")
    sampling = SamplingSpec(SAMPLES, TOKENS, temperature=1.0, top_p=1.0, top_k=None, seed=0)

    async def run() -> list:
        engine = Engine(spec, tokenizer.eos_token_id)
        await engine.update_weights(lambda llm: llm.set_weight_version("0"))
        groups = []
        for prompt in PROMPTS:
            ids = tokenizer(prompt).input_ids
            completions = await engine.generate(ids, sampling, 0)
            groups.append(Group(0, sibling_calls(tuple(ids), completions), (0.0,) * SAMPLES, (0.0,) * SAMPLES))
        return groups

    return asyncio.run(run())


def score(model: str, groups: Sequence, dtype: torch.dtype) -> torch.Tensor:
    """Return a learner's log-probabilities of all sampled tokens, computed in `dtype`."""
    from marl_ray.config import from_tree
    from marl_ray.learning import learner as learner_module
    from marl_ray.learning.arguments import learner_arguments
    from marl_ray.learning.learner import Learner
    from marl_ray.learning.micro_batches import unweighted_row

    learner_module.compute_dtype = lambda *_: dtype  # type: ignore[assignment]
    tree = {"model": {"name": model, "max_length": MAX_LENGTH, "temperature": 1.0}, "dataset": {"name": "bundled:toy"}}
    config = from_tree(tree, "grpo")
    arguments = learner_arguments(config, config.policies[0], 1)
    learner = Learner(*arguments._replace(threads=torch.get_num_threads()))
    rows = [unweighted_row(group) for group in groups]
    return torch.cat(learner.logprob_model.logprobs(rows, 1024)).double()


def differences(engine: torch.Tensor, learner: torch.Tensor, exact: torch.Tensor) -> Mapping[str, torch.Tensor]:
    """Return the three sides of the triangle, [tokens] each."""
    return {
        "engine - float32": engine - exact,
        "learner - float32": learner - exact,
        "engine - learner": engine - learner,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="bundled:smollm2-135m")
    options = parser.parse_args()
    os.environ |= engine_environment(torch.get_num_threads(), False, True, False)  # before vLLM is imported
    from marl_ray.models.names import resolve_model

    model = resolve_model(options.model)
    groups = sample(model)
    engine = torch.tensor([p for g in groups for c in g.completions for p in c.logprobs], dtype=torch.float64)
    learner, exact = (score(model, groups, dtype) for dtype in (torch.bfloat16, torch.float32))
    sides = differences(engine, learner, exact)
    print(f"{len(engine)} tokens; nats per token")
    squares = {}
    for name, values in sides.items():
        squares[name] = float(values.square().mean())
        print(f"{name:<20} mean {float(values.abs().mean()):.4f}  root mean square {math.sqrt(squares[name]):.4f}")
    expected = math.sqrt(squares["engine - float32"] + squares["learner - float32"])
    print(f"expected of rounding alone: root mean square {expected:.4f}")


if __name__ == "__main__":
    main()
