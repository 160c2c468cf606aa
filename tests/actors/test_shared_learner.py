"""Learners of two policies in one process, on a Ray of this machine: its loss is that of both."""

from __future__ import annotations

import asyncio
import signal
from dataclasses import replace

import pytest

from marl_ray.actors.generator_group import GeneratorGroup
from marl_ray.actors.learner_group import LearnerGroup
from marl_ray.actors.shared_learner import SharedLearner, shared_learner_views
from marl_ray.actors.supervisor import ActorSpec
from marl_ray.config import AgentConfig, CreditConfig, LoraConfig, OptimizerConfig
from marl_ray.core.batch import Batch
from marl_ray.core.ids import ActorId, PolicyId
from marl_ray.learning.arguments import LearnerArguments
from marl_ray.learning.learner import Learner
from marl_ray.toy import BASE_PATH
from tests.actors.helpers import DEADLINES, MODEL, ClosedQueue, FaultyQueue, Log
from tests.learning.builders import build_batch
from tests.learning.test_learner import group

pytest.importorskip("peft")

POLICIES = (PolicyId((0,)), PolicyId((1,)))


def arguments(policy: PolicyId) -> LearnerArguments:
    agent = AgentConfig(name="toy", learning_rate=1e-2, temperature=0.9)
    optimizer, lora = OptimizerConfig(importance="none"), LoraConfig(rank=2)
    return LearnerArguments(
        str(BASE_PATH), agent, MODEL, CreditConfig(), optimizer, "float32", 10, 1, lora, policy.number
    )


def test_a_process_that_is_lost_learns_the_same_for_all_its_policies(local_ray: None) -> None:
    def batch(policy: PolicyId, step: int) -> Batch:
        groups = [group(1.0, 0.0), group(0.0, 1.0 + step + policy.number), group(3.0, 2.0, 0.0)]
        return replace(build_batch(groups, 3), step=step)

    batches = {policy: [batch(policy, step) for step in range(3)] for policy in POLICIES}
    apart = {policy: Learner(*arguments(policy)) for policy in POLICIES}
    wanted = {policy: [apart[policy].update(batch) for batch in batches[policy]] for policy in POLICIES}

    async def scenario() -> None:
        name = ActorId("learner", None)
        members = {policy: arguments(policy) for policy in POLICIES}
        recipe = ActorSpec(name, SharedLearner, (name, members), {"num_cpus": 0})
        views = shared_learner_views(POLICIES, recipe, DEADLINES, restarts=2)
        trainers = {policy: LearnerGroup(policy, [], "store", DEADLINES, shared=views[policy]) for policy in POLICIES}
        try:
            notes = await asyncio.gather(*(trainer.start() for trainer in trainers.values()))
            assert notes[0][-1] == "learner 0 has one model for agent 0, agent 1"
            logs = {policy: Log() for policy in POLICIES}
            for policy, trainer in trainers.items():
                await trainer.connect(GeneratorGroup([], 1, DEADLINES), logs[policy])
                logs[policy].batches = dict(enumerate(batches[policy]))

            async def learn(policy: PolicyId, step: int) -> None:
                whole = batches[policy][step]
                fatal = (policy, step) == (POLICIES[1], 1)
                queue = FaultyQueue(whole, signal.SIGKILL, trainers[policy]) if fatal else ClosedQueue(whole)
                assert await trainers[policy].learn(queue) == wanted[policy][step]

            for step in range(3):
                await asyncio.gather(*(learn(policy, step) for policy in POLICIES))
            lives = {trainer.ranks.serving()[0].incarnation for trainer in trainers.values()}
            assert lives == {2}
        finally:
            await asyncio.gather(*(trainer.close() for trainer in trainers.values()))

    asyncio.run(scenario())
