"""Checks of restarts, of weight updates under load and of unusual sizes; see `device_checks`."""

from __future__ import annotations

import asyncio
import tempfile
import time
from statistics import median
from typing import Any, Literal

from marl_ray.config import Config
from marl_ray.plugins.gpu_check.exercise import Exercise, Machine, Numbers, Skipped, exercise, on_one_device
from marl_ray.plugins.gpu_check.small_models import write_wide_model

NUM_SHAPES = 16
LARGE_BYTES = 2**30 * 9 // 8
"""Bytes of an embedding that fills more than one message."""
FEW = {"num_generations": 2, "max_new_tokens": 4}
"""Little sampling with a large model."""


def restart(machine: Machine) -> Numbers:
    """Restore a colocated learner from its checkpoint and its log after a loss.

    On a CPU its weights must be equal. On a GPU they need not be, since the backward passes of FlashAttention and of
    gathered keys add in any order; it must agree with tokens that were sampled before the loss.
    """
    return asyncio.run(_restart(machine))


async def _restart(machine: Machine) -> Numbers:
    config = machine.config(resources={"colocate": "turns"})
    async with exercise(machine, config) as (running, found):
        await running.learn(await running.sample())
        running.saved = (1, str(running.folder / "checkpoint"))
        await running.learner.save(running.saved[1])
        await running.update_weights()
        await running.learn(await running.sample())
        before = await running.update_weights()
        earlier = await running.sample()
        lost = running.learner.ranks.serving()[0]
        begun = time.perf_counter()
        lost.kill()
        running.learner.ranks.report_lost(lost, "killed by the check")
        await running.learner.ranks.wait_ready()
        found["restart s"] = time.perf_counter() - begun
        found["gap of earlier tokens"] = await running.compare(earlier)
        after = await running.update_weights()
        is_equal = before["checksum"] == after["checksum"]
        if not is_equal and not machine.gpus:
            raise RuntimeError(f"the restored learner has other weights: {before['checksum']}, {after['checksum']}")
        found["weights"] = "not equal"
        if is_equal:
            found["weights"] = "equal"
        sampled = await running.sample()
        found["gap after the restart"] = await running.compare(sampled)
        await running.learn(sampled)
        return found


def in_flight(machine: Machine) -> Numbers:
    """Update weights while the engine samples: requests in flight continue, or are finished first."""
    continued = asyncio.run(_in_flight(machine, "continue"))
    drained = asyncio.run(_in_flight(machine, "drain"))
    return continued | drained


async def _in_flight(machine: Machine, mode: Literal["continue", "drain"]) -> Numbers:
    grpo = {"inflight": mode, "max_staleness": 1, "max_new_tokens": 256}
    config = machine.config(grpo=grpo, resources=on_one_device(machine))
    async with exercise(machine, config) as (running, _):
        await running.learn(await running.sample())
        has_begun = asyncio.Event()
        sampling = asyncio.ensure_future(running.stream(lambda _: has_begun.set()))
        async with asyncio.timeout(60):
            await has_begun.wait()
        await running.update_weights()
        [completion] = (await sampling).completions
        versions = [version for version, _ in completion.spans]
        expected = [0]
        if mode == "continue":
            expected = [0, 1]
        if versions != expected:
            raise RuntimeError(f"the tokens of a request in flight were sampled with the weights {versions}")
        gap = await running.compare(await running.sample())
        return {
            f"{mode}: versions": " ".join(map(str, versions)),
            f"{mode}: gap": gap,
        }


def lost_generator(machine: Machine) -> Numbers:
    """Kill a generator in the middle of a weight update; its next incarnation joins a new rendezvous.

    On GPUs the model has two messages, and the generator is killed between them, while the second one is sent.
    """
    if not machine.gpus:
        config = machine.config(resources=on_one_device(machine))
        return asyncio.run(_lost_generator(config, machine, 3))
    resources = {}
    if machine.gpus == 1:
        resources = on_one_device(machine)
    with tempfile.TemporaryDirectory() as folder:
        model = write_wide_model(folder, LARGE_BYTES)
        config = machine.config(model=model, grpo=FEW, resources=resources)
        return asyncio.run(_lost_generator(config, machine, 0))


async def _lost_generator(config: Config, machine: Machine, fatal_weight: int) -> Numbers:
    async with exercise(machine, config) as (running, found):
        await running.learn(await running.sample(2))
        [replica] = running.generators.replicas.serving()
        await running.exit_at_weight(fatal_weight)
        begun = time.perf_counter()
        await running.learner.update_weights(changed=True)
        if running.generators.replicas.serving() == [replica]:
            raise RuntimeError("the generator received all weights, expected its death")
        await running.generators.replicas.wait_ready()
        found["return s"] = time.perf_counter() - begun
        found |= await running.update_weights()
        found["gap after the return"] = await running.compare(await running.sample(2))
        return found


def large_tensor(machine: Machine) -> Numbers:
    """Send a model whose embedding exceeds the default buffer of a packed message."""
    if not machine.gpus:
        raise Skipped("packed messages are used between GPUs only")
    with tempfile.TemporaryDirectory() as folder:
        model = write_wide_model(folder, LARGE_BYTES)
        config = machine.config(model=model, grpo=FEW, resources=on_one_device(machine))
        return asyncio.run(_large_tensor(machine, config))


async def _large_tensor(machine: Machine, config: Config) -> Numbers:
    async with exercise(machine, config) as (running, found):
        found["gap"] = await running.compare(await running.sample(1))
        return found


def shapes(machine: Machine) -> Numbers:
    """Measure optimizer steps on groups of different lengths, each for the first and for the second time.

    A kernel that is planned per shape takes much longer the first time.
    """
    return asyncio.run(_shapes(machine))


async def _shapes(machine: Machine) -> Numbers:
    async def learn_each(running: Exercise, groups: list[Any]) -> list[float]:
        times = []
        for group in groups:
            begun = time.perf_counter()
            await running.learn([group])
            times.append(1000 * (time.perf_counter() - begun))
        return times

    config = machine.config(resources=on_one_device(machine))
    async with exercise(machine, config) as (running, _):
        groups = await running.sample(NUM_SHAPES)
        first = await learn_each(running, groups)
        second = await learn_each(running, groups)
    return {
        "first ms": median(first),
        "second ms": median(second),
        "first max ms": max(first),
        "second max ms": max(second),
    }
