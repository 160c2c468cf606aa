"""A real engine and a real learner that take turns on one device, here the host's memory, and lose each other."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from marl_ray.actors.generation_actor import GenerationActor
from marl_ray.actors.generator_group import GeneratorGroup
from marl_ray.actors.handle import Deadline, Handle
from marl_ray.actors.learner_group import LearnerGroup
from marl_ray.actors.shared_device import MEGABYTE, SharedDevice
from marl_ray.core.episode import Generation
from tests.actors.echo_actor import process_of, until
from tests.actors.helpers import Log, as_batch, generators, learn, learner, run, sample, update_weights

PATIENCE = Deadline(60.0, "sync_s", "to make room on its device")
KV_MB = 192
PROMPTS = [f"def f{i}(x, y):\n    return" for i in range(8)]
MANY = PROMPTS * 8
"""More than an engine samples from at a time."""


@asynccontextmanager
async def pair() -> AsyncIterator[tuple[SharedDevice, GeneratorGroup, LearnerGroup, Log]]:
    device, log = SharedDevice(0, gpu=False, patience=PATIENCE), Log()
    engines = generators(restarts=1, colocated=True, kv_cache_mb=KV_MB)
    policy = learner(restarts=1, device=device)
    try:
        await asyncio.gather(engines.start(), policy.start())
        await policy.connect(engines, log)
        yield device, engines, policy, log
    finally:
        await asyncio.gather(engines.close(), policy.close())


def tokens(generations: list[Generation]) -> list[Any]:
    return [(c.token_ids, c.logprobs, c.weight_version) for g in generations for c in g.completions]


async def megabytes(engines: GeneratorGroup) -> float:
    engine = engines.replicas.serving()[0]
    return await engine.call(GenerationActor.memory).within(PATIENCE) / MEGABYTE


def kill(handle: Handle[Any]) -> None:
    os.kill(process_of(handle), signal.SIGKILL)


def test_engine_and_learner_take_turns_and_survive_each_other(local_ray: None) -> None:
    async def scenario() -> None:
        async with pair() as (device, engines, policy, log):
            before = await falls_asleep_and_wakes(engines, policy)
            await learns_while_the_engine_sleeps(device, engines, policy, log, before)
            await goes_on_where_it_fell_asleep(device, engines)
            await survives_the_learner(engines, policy)
            await survives_the_engine(device, engines, policy)

    async def falls_asleep_and_wakes(engines: GeneratorGroup, policy: LearnerGroup) -> list[Generation]:
        asleep = await megabytes(engines)
        await update_weights(policy)
        assert await megabytes(engines) > asleep + 0.9 * KV_MB, "an engine starts asleep"
        return await sample(engines, PROMPTS)

    async def learns_while_the_engine_sleeps(
        device: SharedDevice, engines: GeneratorGroup, policy: LearnerGroup, log: Log, before: list[Generation]
    ) -> None:
        log.batches[0] = as_batch(before)
        assert (await learn(policy, log.batches[0])).optimizer_steps == 1
        await engines.replicas.serving()[0].call(GenerationActor.alive).within(PATIENCE)
        waiting = asyncio.ensure_future(sample(engines, PROMPTS[:1]))
        await update_weights(
            policy, changed=False
        )  # all the same it is sent: there is nothing that a label could be for
        assert {c.weight_version for g in await waiting for c in g.completions} == {1}
        found = device.pop_memory_metrics(0)
        play, low, learning, awake = (found[f"memory/device_0/{p}"] for p in ("play", "asleep", "learn", "awake"))
        assert min(play, awake) > low + 0.9 * KV_MB
        assert low < learning < play
        assert device.pop_memory_metrics(0) == {}

    async def goes_on_where_it_fell_asleep(device: SharedDevice, engines: GeneratorGroup) -> None:
        expected = await sample(engines, MANY)
        playing = asyncio.ensure_future(sample(engines, MANY))
        await until_busy(engines)
        async with device.borrowed():
            assert not playing.done()
        assert engines.replicas.serving() == [], "it has no weights"
        assert tokens(await playing) == tokens(expected)

    async def survives_the_learner(engines: GeneratorGroup, policy: LearnerGroup) -> None:
        expected = await sample(engines, PROMPTS)
        [engine] = engines.replicas.serving()
        playing = asyncio.ensure_future(sample(engines, PROMPTS))
        await until_busy(engines)
        kill(policy.ranks.serving()[0])
        policy.ranks.report_lost(policy.ranks.serving()[0], "killed")
        assert tokens(await playing) == tokens(expected)
        [rank] = await policy.ranks.wait_ready()
        [same] = await engines.replicas.wait_ready()
        assert (rank.incarnation, same) == (2, engine)
        assert tokens(await sample(engines, PROMPTS)) == tokens(expected), "its next incarnation has learned the same"

    async def survives_the_engine(device: SharedDevice, engines: GeneratorGroup, policy: LearnerGroup) -> None:
        expected = await sample(engines, PROMPTS)
        [engine] = engines.replicas.serving()
        async with device.learning(policy):
            kill(engine)
            engines.replicas.report_lost(engine, "killed")
            asked = asyncio.ensure_future(sample(engines, PROMPTS))
        assert tokens(await asked) == tokens(expected)
        assert [handle.incarnation for handle in engines.replicas.serving()] == [2]

    run(scenario())


async def until_busy(engines: GeneratorGroup) -> None:
    """Requests are with the engine."""
    [engine] = engines.replicas.serving()
    await until(lambda: engines._in_flight[engine] > 0, "requests in flight")
    await engine.call(GenerationActor.alive).within(PATIENCE)
