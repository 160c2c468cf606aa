"""Peak memory of actors compared with the estimate of `marl-ray plan`.

    python -m benchmarks.memory_accuracy                     # three models, some minutes
    python -m benchmarks.memory_accuracy --models llama-21m  # one model
    python -m benchmarks.memory_accuracy --ranks 2           # a learner sharded over two processes

Starts one learner and one engine on a local Ray, as a run does; of several ranks, the largest counts. The engine
samples from a full batch of long prompts. The learner takes two steps with several full micro-batches, and sends its
weights after each step. `measured` is the peak resident memory of each process (VmHWM), with its shared pages of the
object store. `planned` is the estimate for the same config, made before any actor starts. The constants in
`marl_ray.cluster.memory_estimate` are measured with this benchmark: they are the part of `measured` that cannot be
computed from shapes.

Models: SmolLM2-135M, and two models with random weights and a vocabulary of 512 tokens.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from marl_ray.actors.run_actors import RunActors, start_actors
from marl_ray.cluster.capacity_plan import plan_capacity
from marl_ray.cluster.hardware import local_node
from marl_ray.cluster.memory_estimate import ModelInfo, read_model_config
from marl_ray.config import Config, ModelConfig, from_tree
from marl_ray.core.batch import Batch, Group, GroupQueue, MiniBatch
from marl_ray.core.episode import Completion, SamplingSpec, sibling_calls
from marl_ray.models.names import resolve_model
from marl_ray.models.tokenization import load_tokenizer
from marl_ray.storage.run_folder import RunFolder, StoredHistory
from marl_ray.toy import BASE_PATH

MODELS = ("llama-21m", "qwen2-51m", "smollm2-135m")
KINDS = {"generator": "ray::Generator", "learner": "ray::LearnerActor"}
PROMPT, LONG_PROMPT, NEW, GENERATIONS, GROUPS = 32, 300, 120, 4, 4


def make_model(name: str, folder: Path) -> str:
    """Return the model's name for a config; a random model is written to `folder`."""
    if name == "smollm2-135m":
        return "bundled:smollm2-135m"
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    model: Any
    if name == "llama-21m":
        shape: dict[str, Any] = {
            "hidden_size": 512,
            "intermediate_size": 1536,
            "num_hidden_layers": 6,
            "num_attention_heads": 8,
        }
        model = LlamaForCausalLM(LlamaConfig(vocab_size=512, **shape))
    else:
        shape = {"hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 8, "num_attention_heads": 12}
        model = Qwen2ForCausalLM(Qwen2Config(vocab_size=512, num_key_value_heads=4, **shape))
    model.save_pretrained(folder)
    load_tokenizer(str(BASE_PATH), ModelConfig()).save_pretrained(folder)
    return str(folder)


def config_of(model: str, lora: int, ranks: int) -> Config:
    """Return the config of a run with one agent."""
    settings = {
        "num_agents": 1,
        "num_generations": GENERATIONS,
        "max_new_tokens": NEW,
        "rollout_buffer_size": GROUPS,
        "microbatch_tokens": 1024 + PROMPT,
    }
    return from_tree(
        {
            "model": {"name": model, "max_length": 512},
            "dataset": {"name": "bundled:toy"},
            "grpo": settings,
            "lora": {"rank": lora},
            "resources": {
                "generator": {"cpus": 0.9, "kv_cache_mb": 256, "max_num_seqs": 64},
                "learner": {"cpus": 0.9 / ranks, "ranks": ranks},
                "sandbox": {"workers": 1, "cpus": 0.1},
            },
        },
        "grpo",
    )


def planned_bytes(config: Config) -> dict[str, float]:
    """Return the estimated bytes by kind of actor."""
    name = config.agents[0].name
    plan = plan_capacity(
        config, {name: ModelInfo(read_model_config(name, False, fetch=False), False, PROMPT)}, [local_node()]
    )
    assert plan.placed is not None
    return {actor.id.kind: actor.memory.host_total for actor in plan.placed if actor.memory is not None}


def peak_bytes() -> dict[str, float]:
    """Return the peak resident bytes by kind of actor, among the descendants of this process."""
    parents = {}
    for folder in Path("/proc").iterdir():
        try:
            parents[int(folder.name)] = int((folder / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()[1])
        except (ValueError, OSError):
            continue  # not a process, or it has ended
    found: dict[str, float] = {}
    for pid in parents:
        ancestor = pid
        while ancestor in parents and ancestor != os.getpid():
            ancestor = parents[ancestor]
        if ancestor == os.getpid():
            command = Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8")
            for kind, title in KINDS.items():
                if command.startswith(title):
                    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
                    peak = next(1024.0 * int(line.split()[1]) for line in status if line.startswith("VmHWM"))
                    found[kind] = max(peak, found.get(kind, 0.0))
    return found


def queue_of(batch: Batch) -> GroupQueue:
    """Return a closed queue that delivers the complete batch only."""
    queue = GroupQueue(batch.step)
    queue.close(batch)
    return queue


def build_batch(step: int) -> Batch:
    """Return a batch of GROUPS groups of random tokens with the maximum lengths."""
    draw = random.Random(step)

    def text(length: int) -> tuple[int, ...]:
        return tuple(draw.randrange(300) for _ in range(length))

    def group() -> Group:
        completions = tuple(Completion(text(NEW), "", (-1.0,) * NEW, "length", ()) for _ in range(GENERATIONS))
        weights = tuple((-1.0) ** number for number in range(GENERATIONS))
        return Group(0, sibling_calls(text(PROMPT), completions), weights, weights)

    return Batch(step, (MiniBatch(tuple(group() for _ in range(GROUPS)), GROUPS * GENERATIONS),))


async def run_steps(team: RunActors, prompts: Sequence[str], folder: Path) -> None:
    """Sample, learn and send weights twice."""
    (learner,), (generators,) = team.learners, team.generators
    await learner.connect(generators, StoredHistory(RunFolder(folder), learner.policy))
    await learner.update_weights(changed=True)
    for step in range(2):
        specs = (SamplingSpec(GENERATIONS, 40, 1.0, 1.0, None, seed) for seed in range(len(prompts)))
        await asyncio.gather(*(generators.generate(f"{step} {p}", s) for p, s in zip(prompts, specs, strict=True)))
        await learner.learn(queue_of(build_batch(step)))
        await learner.update_weights(changed=True)


async def measured_bytes(config: Config, folder: Path) -> dict[str, float]:
    """Return the measured peak bytes by kind of actor."""
    tokenizer = load_tokenizer(resolve_model(config.agents[0].name), config.model)
    draw, prompts = random.Random(0), []
    for _ in range(8192 // LONG_PROMPT):
        words: list[str] = []
        while len(tokenizer(" ".join(words)).input_ids) < LONG_PROMPT:
            words += (draw.choice(("return", "one", "def", "x")) for _ in range(10))
        prompts.append(" ".join(words))
    team = await start_actors(config, 10)
    try:
        await run_steps(team, prompts, folder)
        return peak_bytes()
    finally:
        await team.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument(
        "--lora", type=int, default=0, metavar="RANK", help="train LoRA adapters of this rank (default 0: all weights)"
    )
    parser.add_argument("--ranks", type=int, default=1, help="ranks of the learner (default 1)")
    arguments = parser.parse_args()
    from marl_ray.cluster.ray_connection import connect, disconnect

    print(f"{'model':<14}{'actor':<11}{'planned MB':>11}{'measured MB':>13}{'planned / measured':>20}")
    for name in arguments.models:
        with tempfile.TemporaryDirectory() as folder:
            config = config_of(make_model(name, Path(folder) / "model"), arguments.lora, arguments.ranks)
            plan = planned_bytes(config)
            connect(verbose=False)
            try:
                found = asyncio.run(measured_bytes(config, Path(folder) / "run"))
            finally:
                disconnect()
        for kind, peak in sorted(found.items()):
            ratio = plan[kind] / peak
            print(f"{name:<14}{kind:<11}{plan[kind] / 1e6:>11.0f}{peak / 1e6:>13.0f}{ratio:>20.3f}", flush=True)


if __name__ == "__main__":
    main()
