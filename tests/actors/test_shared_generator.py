"""One engine with the adapters of two policies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from marl_ray.actors.engine_environment import engine_environment
from marl_ray.actors.generator_group import GeneratorGroup
from marl_ray.actors.handle import Deadline
from marl_ray.actors.learner_group import LearnerGroup
from marl_ray.actors.shared_generator import SharedGenerator, SharedGeneratorProcesses
from marl_ray.actors.supervisor import ActorSpec, RestartLimits
from marl_ray.config import LoraConfig
from marl_ray.core.errors import UserError
from marl_ray.core.ids import ActorId, PolicyId
from tests.actors.echo_actor import kill
from tests.actors.helpers import (
    DEADLINES,
    MODEL,
    PROMPTS,
    SPEC,
    MemoryHistory,
    as_batch,
    learn,
    learner,
    run,
    sample,
    update_weights,
)
from tests.actors.in_flight import long_requests

pytest.importorskip("peft")
pytestmark = [pytest.mark.usefixtures("local_ray"), pytest.mark.slow]

LORA = LoraConfig(rank=4, in_engine=True, share_engine=True)
POLICIES = (PolicyId((0,)), PolicyId((1,)))

START = Deadline(DEADLINES.start_s, "start_s", "to start")


@asynccontextmanager
async def two_agents() -> AsyncIterator[tuple[list[GeneratorGroup], list[LearnerGroup]]]:
    """Start two learners and one engine for both, which serves version 0 of each policy."""
    trainers = [learner(agent=agent, lora=LORA) for agent in range(2)]
    spec = replace(SPEC, transport="adapter", lora=LORA, adapters=2)
    environment = {"runtime_env": {"env_vars": engine_environment(1, False, True, False)}}
    id = ActorId("generator", POLICIES[0])
    options = {"num_cpus": 0, "max_concurrency": 1000, **environment}
    processes = SharedGeneratorProcesses(
        [ActorSpec(id, SharedGenerator, (id, POLICIES, spec, MODEL), options)],
        RestartLimits(START, 2, DEADLINES.heartbeat_s),
    )
    groups = []
    for policy, trainer in zip(POLICIES, trainers, strict=True):
        view = processes.view(policy, trainer.initialize_generator)
        groups.append(GeneratorGroup([], 1, DEADLINES, trainer.initialize_generator, view=view))
    try:
        await asyncio.gather(*(actor.start() for actor in (*groups, *trainers)))
        for group, trainer in zip(groups, trainers, strict=True):
            await trainer.connect(group, MemoryHistory())
            await update_weights(trainer)
        yield groups, trainers
    finally:
        await asyncio.gather(*(actor.close() for actor in (*groups, *trainers)))


def test_each_policy_is_sampled_from_its_own_adapter_and_version() -> None:
    async def scenario() -> None:
        async with two_agents() as (groups, trainers):
            await learn(trainers[1], as_batch(await sample(groups[1], PROMPTS)))
            running = await long_requests(groups[0])
            await update_weights(trainers[1])
            both = await asyncio.gather(*(sample(group, PROMPTS) for group in groups))
            for version, sampled, trainer in zip((0, 1), both, trainers, strict=True):
                assert {c.spans[0][0] for g in sampled for c in g.completions} == {version}
                assert {len(c.spans) for g in sampled for c in g.completions} == {1}
                assert await trainer.logprob_gap(as_batch(sampled).mini_batches[0].groups) < 1e-4
            assert await trainers[0].logprob_gap(as_batch(both[1]).mini_batches[0].groups) > 1e-3
            old = await asyncio.gather(*running)
            assert {c.spans for g in old for c in g.completions} == {
                ((0, len(c.token_ids)),) for g in old for c in g.completions
            }, "an update of another policy changes no version"
            with pytest.raises(UserError, match=r"lora\.share_engine"):
                await groups[0].resize(2)

    run(scenario())


def test_after_a_loss_all_adapters_come_back() -> None:
    async def scenario() -> None:
        async with two_agents() as (groups, trainers):
            for group, trainer, steps in zip(groups, trainers, (1, 2), strict=True):
                for _ in range(steps):
                    await learn(trainer, as_batch(await sample(group, PROMPTS)))
                    await update_weights(trainer)
            before = await asyncio.gather(*(sample(group, PROMPTS) for group in groups))
            kill(groups[1].replicas.serving()[0])
            after = await asyncio.gather(*(sample(group, PROMPTS) for group in groups))
            assert [group.replicas.serving()[0].incarnation for group in groups] == [2, 2]
            assert [group.replicas.lost_count for group in groups] == [1, 0]
            assert after == before
            for version, sampled in zip((1, 2), after, strict=True):
                assert {c.weight_version for g in sampled for c in g.completions} == {version}

    run(scenario())
