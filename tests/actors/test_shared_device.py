"""A real engine and a real learner that share a device in turns (here host memory), and lose each other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from marl_ray.actors.generation_actor import GenerationActor
from marl_ray.actors.generator_group import GeneratorGroup
from marl_ray.actors.handle import Deadline
from marl_ray.actors.learner_group import LearnerGroup
from marl_ray.actors.shared_device import MEGABYTE, SharedDevice
from marl_ray.config.resource_sections import Residency
from marl_ray.core.episode import Generation
from tests.actors.echo_actor import kill, until
from tests.actors.helpers import MemoryHistory, as_batch, generators, learn, learner, run, sample, update_weights

pytestmark = pytest.mark.slow

SOON = Deadline(60.0, "sync_s", "to release its device")
KV_MB = 192
PROMPTS = [f"def f{i}(x, y):\n    return" for i in range(8)]
MANY = PROMPTS * 8
"""More prompts than an engine samples at a time."""


@asynccontextmanager
async def pair(residency: Residency) -> AsyncIterator[tuple[SharedDevice, GeneratorGroup, LearnerGroup, MemoryHistory]]:
    device, log = SharedDevice(0, is_gpu=False, deadline=SOON, residency=residency), MemoryHistory()
    policy = learner(restarts=1, device=device, residency=residency)
    engines = generators(restarts=1, initialize=policy.initialize_generator, residency=residency, kv_cache_mb=KV_MB)
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
    return await engine.call(GenerationActor.memory).within(SOON) / MEGABYTE


@pytest.mark.parametrize("residency", ["turns", "kv", pytest.param("stream", marks=pytest.mark.nightly)])
def test_engine_and_learner_alternate_and_survive_each_others_loss(local_ray: None, residency: Residency) -> None:
    async def scenario() -> None:
        async with pair(residency) as (device, engines, policy, log):
            before = await falls_asleep_and_wakes(engines, policy)
            await learns_while_the_engine_sleeps(device, engines, policy, log, before)
            await continues_after_sleep(device, engines)
            await survives_the_learner(engines, policy)
            await survives_the_engine(device, engines, policy)

    async def falls_asleep_and_wakes(engines: GeneratorGroup, policy: LearnerGroup) -> list[Generation]:
        asleep = await megabytes(engines)
        await update_weights(policy)
        assert await megabytes(engines) > asleep + 0.9 * KV_MB, "an engine starts asleep"
        return await sample(engines, PROMPTS)

    async def learns_while_the_engine_sleeps(
        device: SharedDevice,
        engines: GeneratorGroup,
        policy: LearnerGroup,
        log: MemoryHistory,
        before: list[Generation],
    ) -> None:
        log.batches[0] = as_batch(before)
        assert (await learn(policy, log.batches[0])).optimizer_steps == 1
        await engines.replicas.serving()[0].call(GenerationActor.heartbeat).within(SOON)
        waiting = asyncio.ensure_future(sample(engines, PROMPTS[:1]))
        # In turns weights are sent even if they have not changed, because a sleeping engine has none.
        await update_weights(policy, changed=residency != "turns")
        assert {c.weight_version for g in await waiting for c in g.completions} == {1}
        memory = device.pop_memory_metrics(0)
        rollout, low, training, awake = (memory[f"memory/device_0/{p}"] for p in ("play", "asleep", "learn", "awake"))
        assert min(rollout, awake) > low + 0.9 * KV_MB
        assert low < training < rollout
        assert device.pop_memory_metrics(0) == {}

    async def continues_after_sleep(device: SharedDevice, engines: GeneratorGroup) -> None:
        expected = await sample(engines, MANY)
        running = asyncio.ensure_future(sample(engines, MANY))
        await until_busy(engines)
        async with device.lock_for_restore():
            assert not running.done()
        assert engines.replicas.serving() == [], "it has no weights"
        assert tokens(await running) == tokens(expected)

    async def survives_the_learner(engines: GeneratorGroup, policy: LearnerGroup) -> None:
        expected = await sample(engines, PROMPTS)
        [engine] = engines.replicas.serving()
        running = asyncio.ensure_future(sample(engines, PROMPTS))
        await until_busy(engines)
        kill(policy.ranks.serving()[0])
        policy.ranks.report_lost(policy.ranks.serving()[0], "killed")
        assert tokens(await running) == tokens(expected)
        [rank] = await policy.ranks.wait_ready()
        [same] = await engines.replicas.wait_ready()
        assert (rank.incarnation, same) == (2, engine)
        assert tokens(await sample(engines, PROMPTS)) == tokens(expected), "the restored learner has the same weights"

    async def survives_the_engine(device: SharedDevice, engines: GeneratorGroup, policy: LearnerGroup) -> None:
        expected = await sample(engines, PROMPTS)
        [engine] = engines.replicas.serving()
        async with device.lock_for_training(policy):
            kill(engine)
            engines.replicas.report_lost(engine, "killed")
            asked = asyncio.ensure_future(sample(engines, PROMPTS))
        assert tokens(await asked) == tokens(expected)
        assert [handle.incarnation for handle in engines.replicas.serving()] == [2]

    run(scenario())


async def until_busy(engines: GeneratorGroup) -> None:
    """Wait until the engine has requests in flight."""
    [engine] = engines.replicas.serving()
    await until(lambda: engines._in_flight[engine] > 0, "requests in flight")
    await engine.call(GenerationActor.heartbeat).within(SOON)
