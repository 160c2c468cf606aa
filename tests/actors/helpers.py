"""Real actors for tests: generators and learners of the bundled base model."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from marl_ray.actors.engine_arguments import EngineSpec
from marl_ray.actors.engine_environment import engine_environment
from marl_ray.actors.generation_actor import GenerationActor
from marl_ray.actors.generator_group import GeneratorGroup
from marl_ray.actors.handle import Deadline
from marl_ray.actors.learner_actor import LearnerActor
from marl_ray.actors.learner_group import LearnerGroup
from marl_ray.actors.shared_device import DEDICATED, DedicatedDevice
from marl_ray.actors.supervisor import ActorSpec, Initialize, RestartLimits, Supervisor, skip_initialization
from marl_ray.config import (
    AgentConfig,
    CreditConfig,
    Deadlines,
    LearnerResources,
    LoraConfig,
    ModelConfig,
    OptimizerConfig,
)
from marl_ray.config.agent_section import AgentResources
from marl_ray.config.resource_sections import Residency
from marl_ray.core.batch import Batch, Group, GroupQueue, UpdateStats
from marl_ray.core.episode import Generation, SamplingSpec
from marl_ray.core.ids import ActorId, PolicyId
from marl_ray.data.loading import load_tasks
from marl_ray.environments import ENVIRONMENTS
from marl_ray.learning.arguments import LearnerArguments
from marl_ray.toy import BASE_PATH
from tests.actors.echo_actor import process_of
from tests.factories import make_config
from tests.learning.builders import build_batch, unweighted_group

R = TypeVar("R")

NO_ADAPTER = LoraConfig()
SPEC = EngineSpec(str(BASE_PATH), "float32", 512, False, False, 1, 0.5, 64, 128, "store")
MODEL = ModelConfig()
SAMPLING = SamplingSpec(num_generations=6, max_new_tokens=48, temperature=0.9, top_p=1.0, top_k=None, seed=11)
DEADLINES = Deadlines(start_s=300, rollout_s=120, learn_s=120, sync_s=60, checkpoint_s=120)
PROMPTS = [
    ENVIRONMENTS.get("code_generation").from_config(make_config()).first_prompts(task)[1]
    for task in load_tasks("bundled:toy", "train")[:6]
]


def run(work: Coroutine[Any, Any, R]) -> R:
    return asyncio.run(work)


def generators(
    folder: str = str(BASE_PATH),
    replicas: int = 1,
    agent: int = 0,
    restarts: int = 0,
    deadlines: Deadlines = DEADLINES,
    initialize: Initialize[GenerationActor] = skip_initialization,
    actor_class: type[GenerationActor] = GenerationActor,
    drains: bool = False,
    **spec_changes: Any,
) -> GeneratorGroup:
    """Create the generators of one policy without starting them."""
    engine = replace(SPEC, model=folder, **spec_changes)
    options = {
        "num_cpus": 0,
        "max_concurrency": 1000,
        "runtime_env": {"env_vars": engine_environment(1, False, True, False)},
    }

    def spec(replica: int) -> ActorSpec[GenerationActor]:
        id = ActorId("generator", PolicyId((agent,)), replica)
        return ActorSpec(id, actor_class, (id, engine, MODEL), options)

    async def reserve(replica: int) -> ActorSpec[GenerationActor]:
        return spec(replica)

    specs = [spec(replica) for replica in range(replicas)]
    return GeneratorGroup(specs, 1, deadlines, initialize, restarts, reserve=reserve, drains=drains)


def learner(
    folder: str = str(BASE_PATH),
    learning_rate: float = 1e-2,
    deadlines: Deadlines = DEADLINES,
    agent: int = 0,
    restarts: int = 0,
    ranks: int = 1,
    device: DedicatedDevice = DEDICATED,
    residency: Residency | None = None,
    lora: LoraConfig = NO_ADAPTER,
) -> LearnerGroup:
    """Create the learner of one policy without starting it."""
    policy = PolicyId((agent,))
    arguments = learner_arguments(folder, learning_rate, ranks, lora)
    ids = [ActorId("learner", policy, rank) for rank in range(ranks)]
    specs = [ActorSpec(id, LearnerActor, (id, arguments, residency), {"num_cpus": 0}) for id in ids]
    restart_policy = RestartLimits(Deadline(deadlines.start_s, "start_s", "to start"), restarts, deadlines.heartbeat_s)
    supervise = partial(Supervisor, specs, restart_policy)
    return LearnerGroup(policy, supervise, ranks, "adapter" if lora.in_engine else "store", deadlines, device)


def learner_arguments(
    folder: str = str(BASE_PATH), learning_rate: float = 1e-2, ranks: int = 1, lora: LoraConfig = NO_ADAPTER
) -> LearnerArguments:
    settings = AgentConfig(
        name=folder,
        learning_rate=learning_rate,
        temperature=SAMPLING.temperature,
        resources=AgentResources(learner=LearnerResources(ranks=ranks)),
    )
    optimizer = OptimizerConfig(importance="none")
    return LearnerArguments(folder, settings, MODEL, CreditConfig(), optimizer, "float32", 10, 1, lora)


class ClosedQueue(GroupQueue):
    """The queue of a complete batch, whose groups are delivered one by one."""

    def __init__(self, batch: Batch) -> None:
        super().__init__(batch.step)
        self.put(batch.mini_batches[0].groups)
        self.close(batch)

    async def get(self, start: int) -> Sequence[Group]:
        return (await super().get(start))[:1]


class FaultyQueue(ClosedQueue):
    """The queue of a complete batch that sends `fault` to a rank of the learner once, before it delivers group 2."""

    def __init__(self, batch: Batch, fault: signal.Signals, learner: LearnerGroup, rank: int = 0) -> None:
        super().__init__(batch)
        self._faults, self._learner, self._rank = [fault], learner, rank

    async def get(self, start: int) -> Sequence[Group]:
        if start == 2 and self._faults:
            os.kill(process_of(self._learner.ranks.serving()[self._rank]), self._faults.pop())
        return await super().get(start)


class MemoryHistory:
    """A `TrainingHistory` in memory: the batches that were learned from, and the last checkpoint."""

    def __init__(self) -> None:
        self.batches: dict[int, Batch] = {}
        self.saved: tuple[int, str] | None = None

    def checkpoint(self) -> tuple[int, str] | None:
        return self.saved

    def batch(self, step: int) -> Batch:
        return self.batches[step]


async def learn(group: LearnerGroup, batch: Batch) -> UpdateStats:
    """Learn from a batch under the next number."""
    return await group.learn(ClosedQueue(replace(batch, step=group.version)))


async def update_weights(group: LearnerGroup, changed: bool = True) -> int:
    """Update the weights of generators, none of which is lost, and return the checksum."""
    result = await group.update_weights(changed)
    assert result is not None
    assert (result.version, result.failed) == (group.version, {})
    return result.checksum


async def sample(group: GeneratorGroup, prompts: Sequence[str]) -> list[Generation]:
    """Sample a group of completions per prompt, all at the same time, with different seeds."""
    calls = (group.generate(prompt, replace(SAMPLING, seed=100 * i)) for i, prompt in enumerate(prompts))
    return list(await asyncio.gather(*calls))


def as_batch(generations: Sequence[Generation], returns: Sequence[float] | None = None) -> Batch:
    """Return a batch of one mini-batch. By default the returns count distinct tokens, so that siblings differ."""
    groups = [
        unweighted_group(
            0, g.prompt_ids, g.completions, tuple(returns or (float(len(set(c.token_ids))) for c in g.completions))
        )
        for g in generations
    ]
    return build_batch(groups, len(groups))
