"""Learners of two policies in one process on a local Ray: both are lost and restored together."""

from __future__ import annotations

import asyncio
import signal
from dataclasses import replace
from functools import partial

import pytest

from marl_ray.actors.generator_group import GeneratorGroup
from marl_ray.actors.learner_group import LearnerGroup
from marl_ray.actors.shared_learner import SharedLearner, SharedLearnerProcess
from marl_ray.actors.supervisor import ActorSpec, RestartLimits
from marl_ray.config import AgentConfig, CreditConfig, LoraConfig, OptimizerConfig
from marl_ray.core.batch import Batch
from marl_ray.core.ids import ActorId, PolicyId
from marl_ray.learning.arguments import LearnerArguments
from marl_ray.learning.learner import Learner
from marl_ray.toy import BASE_PATH
from tests.actors.echo_actor import SOON
from tests.actors.helpers import DEADLINES, MODEL, ClosedQueue, FaultyQueue, MemoryHistory
from tests.learning.builders import build_batch
from tests.learning.toy_learners import group

pytestmark = pytest.mark.slow

pytest.importorskip("peft")

POLICIES = (PolicyId((0,)), PolicyId((1,)))


def arguments(policy: PolicyId) -> LearnerArguments:
    agent = AgentConfig(name="toy", learning_rate=1e-2, temperature=0.9)
    optimizer, lora = OptimizerConfig(importance="none"), LoraConfig(rank=2)
    return LearnerArguments(
        str(BASE_PATH), agent, MODEL, CreditConfig(), optimizer, "float32", 10, 1, lora, policy.first_agent
    )


def test_after_the_loss_of_a_shared_process_all_policies_learn_the_same(local_ray: None) -> None:
    def batch(policy: PolicyId, step: int) -> Batch:
        groups = [group(1.0, 0.0), group(0.0, 1.0 + step + policy.first_agent), group(3.0, 2.0, 0.0)]
        return replace(build_batch(groups, 3), step=step)

    batches = {policy: [batch(policy, step) for step in range(3)] for policy in POLICIES}
    separate = {policy: Learner(*arguments(policy)) for policy in POLICIES}
    expected = {policy: [separate[policy].update(batch) for batch in batches[policy]] for policy in POLICIES}

    async def scenario() -> None:
        id = ActorId("learner", None)
        members = {policy: arguments(policy) for policy in POLICIES}
        spec = ActorSpec(id, SharedLearner, (id, members), {"num_cpus": 0})
        process = SharedLearnerProcess(spec, RestartLimits(SOON, 2, DEADLINES.heartbeat_s))
        trainers = {
            policy: LearnerGroup(policy, partial(process.view, policy), 1, "store", DEADLINES) for policy in POLICIES
        }
        try:
            notes = await asyncio.gather(*(trainer.start() for trainer in trainers.values()))
            assert notes[0][-1] == "learner 0 has one model for agent 0, agent 1"
            logs = {policy: MemoryHistory() for policy in POLICIES}
            for policy, trainer in trainers.items():
                await trainer.connect(GeneratorGroup([], 1, DEADLINES, trainer.initialize_generator), logs[policy])
                logs[policy].batches = dict(enumerate(batches[policy]))

            async def learn(policy: PolicyId, step: int) -> None:
                batch = batches[policy][step]
                is_fatal = (policy, step) == (POLICIES[1], 1)
                queue = FaultyQueue(batch, signal.SIGKILL, trainers[policy]) if is_fatal else ClosedQueue(batch)
                assert await trainers[policy].learn(queue) == expected[policy][step]

            for step in range(3):
                await asyncio.gather(*(learn(policy, step) for policy in POLICIES))
            incarnations = {trainer.ranks.serving()[0].incarnation for trainer in trainers.values()}
            assert incarnations == {2}
        finally:
            await asyncio.gather(*(trainer.close() for trainer in trainers.values()))

    asyncio.run(scenario())
