"""Weight updates and lost actors while real engines have requests in flight."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from marl_ray.actors.generation_actor import GenerationActor
from marl_ray.actors.generator_group import GeneratorGroup
from marl_ray.actors.handle import Handle
from marl_ray.actors.learner_actor import LearnerActor
from marl_ray.actors.learner_group import LearnerGroup
from marl_ray.core.batch import GroupQueue
from marl_ray.core.episode import Generation
from marl_ray.core.errors import UserError
from marl_ray.learning.policy_model import load_policy
from marl_ray.weights.deltas import Checksum
from marl_ray.weights.sender import CastSource
from tests.actors.echo_actor import kill, process_of
from tests.actors.helpers import (
    DEADLINES,
    PROMPTS,
    SAMPLING,
    ClosedQueue,
    FaultyQueue,
    MemoryHistory,
    as_batch,
    generators,
    learn,
    learner,
    sample,
    update_weights,
)
from tests.actors.in_flight import LONG, SOON, assert_sampled_by, long_requests

pytestmark = [pytest.mark.usefixtures("local_ray"), pytest.mark.slow]


@asynccontextmanager
async def an_agent(**options: Any) -> AsyncIterator[tuple[GeneratorGroup, LearnerGroup, MemoryHistory]]:
    """Start generators and learner of one agent, which serve version 0."""
    trainer = learner(learning_rate=3e-3, restarts=5, deadlines=options.get("deadlines", DEADLINES))
    log = MemoryHistory()
    engine = generators(**({"initialize": trainer.initialize_generator} | options))
    try:
        await asyncio.gather(engine.start(), trainer.start())
        await trainer.connect(engine, log)
        await update_weights(trainer)
        yield engine, trainer, log
    finally:
        await asyncio.gather(engine.close(), trainer.close())


def bits(generations: Sequence[Generation]) -> list[Any]:
    return [[(c.token_ids, c.logprobs, c.spans) for c in g.completions] for g in generations]


class QueueingGenerator(GenerationActor):
    """A generation actor whose engine starts a step before it has the tokens of the last one, as on a GPU."""

    async def start(self) -> list[str]:
        def queue_batches(engine: Any) -> None:
            core = engine.engine_core.engine_core
            core.batch_queue_size, core.batch_queue = 2, deque(maxlen=2)
            core.step_fn = core.step_with_batch_queue

        notes = await super().start()
        await self.engine.call(queue_batches)
        return notes

    async def queued(self) -> int:
        """Return the number of batches in the queue, once there is one."""
        while not (queued := await self.engine.call(lambda engine: len(engine.engine_core.engine_core.batch_queue))):
            pass
        return queued


@pytest.mark.parametrize("drain", [False, True])
def test_steps_in_progress_are_finished_before_an_update(tmp_path: Path, drain: bool) -> None:
    async def scenario() -> None:
        async with an_agent(actor_class=QueueingGenerator, drains=drain) as (engine, trainer, _):
            batch = as_batch(await sample(engine, PROMPTS))
            await trainer.export(str(tmp_path / "0"), PROMPTS)
            await learn(trainer, batch)
            await trainer.export(str(tmp_path / "1"), PROMPTS)
            running = await long_requests(engine)
            [replica] = engine.replicas.serving()
            assert await replica.call(QueueingGenerator.queued).within(SOON) == 1
            await update_weights(trainer)
            old, new = await asyncio.gather(*running), await sample(engine, PROMPTS)
            versions = {tuple(version for version, _ in c.spans) for g in old for c in g.completions}
            assert ((0, 1) in versions) != drain, versions
            policies = [load_policy(str(tmp_path / str(v)), False, torch.device("cpu")).eval() for v in range(2)]
            assert_sampled_by(policies, old)
            assert {c.weight_version for g in new for c in g.completions} == {1}

    asyncio.run(scenario())


def test_weights_change_between_tokens_and_new_requests_use_only_new_weights(tmp_path: Path) -> None:
    async def scenario() -> None:
        async def initialize(generator: Handle[GenerationActor]) -> None:
            await further.initialize_generator(generator)

        further = learner(learning_rate=3e-3)
        async with an_agent(initialize=initialize) as (engine, trainer, log):
            batch = as_batch(await sample(engine, PROMPTS))  # caches the prompts under version 0
            await trainer.export(str(tmp_path / "0"), PROMPTS)
            await learn(trainer, batch)
            await trainer.export(str(tmp_path / "1"), PROMPTS)
            await further.start()
            for _ in range(2):
                await learn(further, batch)
            await further.export(str(tmp_path / "2"), PROMPTS)
            await further.connect(engine, log)
            running = await long_requests(engine)
            await update_weights(trainer)
            await update_weights(further)
            new = await sample(engine, PROMPTS)
            old = await asyncio.gather(*running)

            policies = [load_policy(str(tmp_path / str(v)), False, torch.device("cpu")).eval() for v in range(3)]
            versions = [tuple(version for version, _ in c.spans) for g in old for c in g.completions]
            assert sum(len(version) > 1 for version in versions) >= 8, versions
            assert (0, 1, 2) in versions, versions
            assert_sampled_by(policies, old)
            assert {c.spans for g in new for c in g.completions} == {((2, n),) for n in lengths(new)}
            await engine.resize(2)
            _, new_replica = await engine.replicas.wait_ready(all_members=True)
            calls = [
                new_replica.call(GenerationActor.generate, p, replace(SAMPLING, seed=100 * i))
                for i, p in enumerate(PROMPTS)
            ]
            assert bits(await asyncio.gather(*(call.within(SOON) for call in calls))) == bits(new)
            await resized_to_one(engine)
            await further.close()

    async def resized_to_one(engine: GeneratorGroup) -> None:
        expected = bits(await asyncio.gather(*await long_requests(engine)))
        running = await long_requests(engine)
        await engine.resize(1)
        assert bits(await asyncio.gather(*running)) == expected
        with pytest.raises(UserError, match="at least one generator"):
            await engine.resize(0)

    def lengths(generations: Sequence[Generation]) -> set[int]:
        return {len(c.token_ids) for g in generations for c in g.completions}

    asyncio.run(scenario())


def test_with_drain_requests_in_flight_are_finished_before_an_update() -> None:
    async def scenario() -> None:
        async with an_agent(drains=True) as (engine, trainer, _):
            expected = bits(await asyncio.gather(*await long_requests(engine)))
            await learn(trainer, as_batch(await sample(engine, PROMPTS)))
            running = await long_requests(engine)
            await update_weights(trainer)
            assert bits(await asyncio.gather(*running)) == expected, "all of version 0"
            assert {c.weight_version for g in await sample(engine, PROMPTS) for c in g.completions} == {1}

    asyncio.run(scenario())


class SlowGenerator(GenerationActor):
    """A generator whose answers take longer than a weight update may."""

    async def slow_down(self) -> None:
        step = self.engine._step

        def slow() -> None:
            time.sleep(0.2)
            step()

        self.engine._step = slow  # type: ignore[method-assign]


def test_a_drain_that_takes_longer_than_an_update_may_loses_no_generator() -> None:
    async def scenario() -> None:
        deadlines = replace(DEADLINES, sync_s=3)
        async with an_agent(actor_class=SlowGenerator, drains=True, deadlines=deadlines) as (engine, trainer, _):
            await learn(trainer, as_batch(await sample(engine, PROMPTS)))
            [replica] = engine.replicas.serving()
            await replica.call(SlowGenerator.slow_down).within(SOON)
            running = await long_requests(engine)
            begun = time.monotonic()
            await update_weights(trainer)
            assert time.monotonic() - begun > 3
            assert {c.weight_version for g in await asyncio.gather(*running) for c in g.completions} == {0}
            assert [one.incarnation for one in engine.replicas.serving()] == [1]

    asyncio.run(scenario())


def test_requests_of_a_lost_generator_are_retried_after_its_restart() -> None:
    async def scenario() -> None:
        deadlines = replace(DEADLINES, heartbeat_s=8)
        async with an_agent(restarts=2, deadlines=deadlines) as (engine, trainer, _):
            await learn(trainer, as_batch(await sample(engine, PROMPTS)))
            await update_weights(trainer)
            expected = bits(await asyncio.gather(*await long_requests(engine)))
            for incarnation, fault in enumerate((signal.SIGKILL, signal.SIGSTOP), start=2):
                running = await long_requests(engine)
                os.kill(process_of(engine.replicas.serving()[0]), fault)
                assert bits(await asyncio.gather(*running)) == expected
                assert [replica.incarnation for replica in engine.replicas.serving()] == [incarnation]
            kill(engine.replicas.serving()[0])
            with pytest.raises(UserError, match=r"^agent 0 generator 0 is lost for good \(resources.generator.max_res"):
                await engine.generate(PROMPTS[0], LONG)

    asyncio.run(scenario())


def test_a_lost_learner_learns_the_same(tmp_path: Path) -> None:
    # The learner is killed during a batch, hangs in another, and dies after a third one before it answers.

    async def scenario() -> None:
        async with an_agent(deadlines=replace(DEADLINES, heartbeat_s=8)) as (engine, trainer, log):
            zombie = learner()
            await zombie.start()
            await zombie.connect(engine, log)
            groups = await sample(engine, PROMPTS)
            batches = [replace(as_batch(groups[i : i + 4]), step=i) for i in range(3)]
            reference = learner(learning_rate=3e-3)
            await reference.start()
            for batch in batches:
                log.batches[batch.step] = batch
                expected = await reference.learn(ClosedQueue(batch))
                fault = (signal.SIGKILL, signal.SIGSTOP, None)[batch.step]
                if fault is None:
                    await die_when_done(trainer, ClosedQueue(batch))
                    stats = await trainer.learn(ClosedQueue(batch))
                else:
                    stats = await trainer.learn(FaultyQueue(batch, fault, trainer))
                assert stats == expected
                if batch.step == 0:
                    await trainer.save(str(tmp_path))
                    log.saved = (1, str(tmp_path))
            assert (trainer.version, trainer.ranks.serving()[0].incarnation) == (3, 4)
            checksum = await update_weights(trainer)
            with pytest.raises(UserError, match=r"refuses incarnation 1 of its learner, which is in incarnation 4"):
                await zombie.update_weights(changed=True)
            assert checksum == await checksum_of(reference, tmp_path)
            await asyncio.gather(zombie.close(), reference.close())

    async def die_when_done(trainer: LearnerGroup, queue: GroupQueue) -> None:
        rank: Handle[LearnerActor] = trainer.ranks.serving()[0]
        await rank.call(LearnerActor.finish, await queue.batch(), 0).within(SOON)
        kill(rank)

    async def checksum_of(group: LearnerGroup, folder: Path) -> int:
        await group.export(str(folder / "reference"), PROMPTS)
        checksum = Checksum()
        policy = load_policy(str(folder / "reference"), False, torch.device("cpu"))
        for _ in checksum.watch(CastSource(policy, torch.float32)):
            pass
        return checksum.value

    asyncio.run(scenario())
