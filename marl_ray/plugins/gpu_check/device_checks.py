"""The checks of `marl-ray doctor`: real actors on the devices of this machine, one process per check.

A check returns measurements by name and raises an exception on failure. Most checks run the same sequence on different
actors: start an engine and a learner, synchronise weights, sample tokens and compare their log-probabilities, take an
optimizer step, and synchronise and compare again.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from marl_ray.actors.run_actors import EvaluationActors
from marl_ray.config import Config, from_tree
from marl_ray.core.errors import UserError
from marl_ray.environments import ENVIRONMENTS
from marl_ray.plugins.gpu_check import recovery_checks
from marl_ray.plugins.gpu_check.exercise import (
    GAPS,
    PROMPTS,
    Machine,
    Numbers,
    below,
    count_tokens,
    exercise,
    first_prompts,
    on_one_device,
    sample,
)
from marl_ray.plugins.gpu_check.small_models import write_two_head_model

PHASES = ("play", "asleep", "learn", "awake")


def transfer_on_one_device(machine: Machine) -> Numbers:
    """Share one GPU between engine and learner, with weights sent by CUDA IPC; on a CPU, by Ray's object store."""
    return _run(machine, resources=on_one_device(machine))


def transfer_between_devices(machine: Machine) -> Numbers:
    """Give engine and learner one GPU each, with weights sent by NCCL."""
    machine.require(2)
    return _run(machine)


def two_replicas(machine: Machine) -> Numbers:
    """Send weights to two engines at once; the learner has a GPU of its own."""
    machine.require(3)
    return _run(machine, resources={"generator": {"replicas": 2}})


def colocated(machine: Machine) -> Numbers:
    """Test `resources.colocate: turns`: the engine sleeps during learner steps."""
    return _colocated(machine, {})


def keeping_weights(machine: Machine) -> Numbers:
    """Test `resources.colocate: kv`: the engine releases its KV cache during learner steps, and keeps its weights."""
    return _colocated(machine, {"colocate": "kv"})


def streaming(machine: Machine) -> Numbers:
    """Test `resources.colocate: stream`: as `kv`, and the optimizer state passes through the GPU in chunks."""
    return _colocated(machine, {"colocate": "stream"})


def colocated_on_all(machine: Machine) -> Numbers:
    """Let an engine per GPU and a learner with a rank per GPU use all GPUs in turns."""
    machine.require(2)
    return _colocated(machine, {"generator": {"replicas": machine.gpus}, "learner": {"ranks": machine.gpus}})


def sharded_learner(machine: Machine) -> Numbers:
    """Shard the learner over all GPUs except the engine's; on a CPU, over two processes."""
    ranks = 2
    if machine.gpus:
        machine.require(3)
        ranks = machine.gpus - 1
    numbers = _run(machine, resources={"learner": {"ranks": ranks}})
    return {"ranks": ranks} | numbers


def offloaded_shards(machine: Machine) -> Numbers:
    """Keep the shards of a learner with two ranks in host memory (`learner.cpu_offload`)."""
    machine.require(3)
    return _run(machine, resources={"learner": {"ranks": 2, "cpu_offload": True}})


def tensor_parallel(machine: Machine) -> Numbers:
    """Run an engine on two GPUs and synchronise its weights; without a third GPU for the learner, only sample."""
    machine.require(2)
    with tempfile.TemporaryDirectory() as folder:
        model = write_two_head_model(folder)
        resources = {"generator": {"tensor_parallel": 2}}
        if machine.gpus > 2:
            return _run(machine, model=model, resources=resources)
        return asyncio.run(_sample_only(machine.config(model=model, resources=resources)))


def lora(machine: Machine) -> Numbers:
    """Train adapters of a frozen base model, and send the merged weights."""
    lora = {"rank": 8, "in_engine": False}
    return _run(machine, lora=lora, resources=on_one_device(machine))


def adapters(machine: Machine) -> Numbers:
    """Train adapters of a frozen base model, and send the adapters only to an engine that has the base model."""
    lora = {"rank": 8, "in_engine": True}
    return _run(machine, lora=lora, resources=on_one_device(machine))


def training(machine: Machine) -> Numbers:
    """Train two agents for two steps, colocated on one device."""
    last = _train(machine, {})
    gap = max(last["agent_0/logprob_gap"], last["agent_1/logprob_gap"])
    numbers = {
        "step s": last["time/step"],
        "gap": below(gap, GAPS[machine.dtype]),
    }
    for phase in PHASES:
        numbers[f"{phase} MB"] = last[f"memory/device_0/{phase}"]
    return numbers


def options(machine: Machine) -> Numbers:
    """Train two agents with a critic, gradient checkpointing, truncated sampling and, on a GPU, 8-bit AdamW."""
    settings: dict[str, Any] = {"critic": "iac", "gradient_checkpointing": True}
    if machine.gpus:
        settings["optimizer"] = "adamw_8bit"
    last = _train(machine, settings, top_p=0.9)
    return {name: last[f"agent_0/{name}"] for name in ("loss", "critic_loss", "grad_norm")}


CHECKS: dict[str, tuple[Callable[[Machine], Numbers], str]] = {
    "one_device": (transfer_on_one_device, "engine, CUDA IPC with checksums, log-probability gap"),
    "two_devices": (transfer_between_devices, "engine, NCCL with checksums, log-probability gap"),
    "turns": (colocated, "colocated sleep and wake"),
    "kv": (keeping_weights, "an engine that keeps its weights during learner steps"),
    "stream": (streaming, "optimizer state in host memory"),
    "all_in_turns": (colocated_on_all, "colocated engines and ranks on all GPUs"),
    "ranks": (sharded_learner, "learner with several ranks"),
    "offload": (offloaded_shards, "two ranks with shards in host memory"),
    "replicas": (two_replicas, "weights to two engines"),
    "tensor_parallel": (tensor_parallel, "engine on two GPUs"),
    "restart": (recovery_checks.restart, "colocated learner: save, load, and restart after a loss"),
    "in_flight": (recovery_checks.in_flight, "weight updates with requests in flight"),
    "lost_generator": (recovery_checks.lost_generator, "a generator lost during a weight update, and its return"),
    "large_tensor": (recovery_checks.large_tensor, "a weight above 1 GiB"),
    "shapes": (recovery_checks.shapes, "learner time over 16 shapes"),
    "lora": (lora, "adapters of a frozen base"),
    "adapters": (adapters, "adapters of a frozen base, in the engine"),
    "training": (training, "two agents on one device, two steps"),
    "options": (options, "critic, checkpointing, top_p, 8-bit AdamW"),
}
"""Each check's function and description, by name."""


def _colocated(machine: Machine, resources: dict[str, Any]) -> Numbers:
    found = _run(machine, resources={"colocate": "turns", **resources})
    play, asleep, learn, awake = (found[f"{phase} MB"] for phase in PHASES)
    if not asleep < min(play, awake) or not asleep <= learn:
        raise RuntimeError(
            f"sleeping freed no memory: rollout {play:g} MB, asleep {asleep:g}, learning {learn:g}, awake {awake:g}"
        )
    return found


def _run(machine: Machine, **sections: Any) -> Numbers:
    return asyncio.run(_standard(machine, machine.config(**sections)))


async def _standard(machine: Machine, config: Config) -> Numbers:
    """Start, update weights, sample, compare, learn, update weights and compare again."""
    async with exercise(machine, config) as (running, found):
        found |= await running.engine_facts()
        begun = time.perf_counter()
        sampled = await running.sample()
        seconds = time.perf_counter() - begun
        found["tokens/s"] = count_tokens(sampled) / seconds
        found["gap"] = await running.compare(sampled)
        await running.learner.update_weights(changed=False)
        await running.learn(sampled)
        found |= await running.update_weights()
        again = await running.sample()
        for generation in again:
            for completion in generation.completions:
                if completion.weight_version != 1:
                    raise RuntimeError("tokens after the update were not sampled with the new weights")
        found["gap after the update"] = await running.compare(again)
        memory = running.actors.pop_memory_metrics(0)
        for phase in PHASES:
            key = f"memory/device_0/{phase}"
            if key in memory:
                found[f"{phase} MB"] = memory[key]
        return found


async def _sample_only(config: Config) -> Numbers:
    """Start an engine without a learner and sample."""
    actors = EvaluationActors(config.resources, config.sandbox)
    begun = time.perf_counter()
    await actors.start()
    try:
        [generators] = await actors.start_generators([config])
        started = time.perf_counter()
        environment = ENVIRONMENTS.get(config.environment).from_config(config)
        prompts = first_prompts(environment, PROMPTS)
        sampled = await sample(config.agents[0], config.training.group_sizes[0], generators, prompts)
        seconds = time.perf_counter() - started
        return {
            "start s": started - begun,
            "weights": "not synchronised: needs a third GPU",
            "tokens/s": count_tokens(sampled) / seconds,
        }
    finally:
        await actors.close()


def _train(machine: Machine, settings: dict[str, Any], **model: Any) -> dict[str, Any]:
    """Train two agents on toy tasks for two steps, colocated, and return the metrics of the last step."""
    from marl_ray.launch.run import train
    from marl_ray.telemetry.sinks import read_rows

    resources: dict[str, Any] = {"colocate": "turns", "sandbox": {"workers": 1, "cpus": 0.1}}
    if machine.gpus:
        resources["generator"] = {"gpus": 0.5, "gpu_memory_utilization": 0.4}
    with tempfile.TemporaryDirectory() as folder:
        tree = {
            "model": {
                "name": machine.model,
                "model_kwargs": {"torch_dtype": machine.dtype},
                "max_length": 1024,
                **model,
            },
            "dataset": {"name": "bundled:toy", "eval_split": None},
            "magrpo": {
                "num_agents": 2,
                "max_steps": 2,
                "rollout_buffer_size": 4,
                "max_new_tokens": 48,
                **settings,
            },
            "resources": resources,
            "output": {"base_dir": folder, "run_name": "check"},
        }
        train(from_tree(tree, "magrpo"))
        rows = list(read_rows(Path(folder) / "check" / "metrics.jsonl"))
    if len(rows) != 2:
        raise UserError(f"the run has {len(rows)} steps, expected 2")
    return rows[-1]
