"""Real actors for tests: generators and learners of the bundled base model."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from marl_ray.actors.generation_actor import GenerationActor
from marl_ray.actors.generator_group import GeneratorGroup
from marl_ray.actors.learner_actor import LearnerActor
from marl_ray.actors.learner_group import LearnerGroup
from marl_ray.actors.shared_device import OWN, DedicatedDevice
from marl_ray.actors.supervisor import ActorSpec
from marl_ray.actors.vllm_arguments import EngineSpec, engine_environment
from marl_ray.config import AgentConfig, CreditConfig, Deadlines, LearnerResources, ModelConfig, OptimizerConfig
from marl_ray.core.batch import Batch, Group, UpdateStats
from marl_ray.core.episode import Generation, SamplingSpec
from marl_ray.core.group_queue import GroupQueue
from marl_ray.core.ids import ActorId, PolicyId
from marl_ray.learning.arguments import LearnerArguments
from marl_ray.toy import BASE_PATH
from tests.actors.echo_actor import process_of
from tests.learning.builders import build_batch, returned

R = TypeVar("R")

SPEC = EngineSpec(str(BASE_PATH), "float32", 512, False, False, 1, 0.5, 64, 128, "store")
MODEL = ModelConfig()
SAMPLING = SamplingSpec(num_generations=6, max_new_tokens=48, temperature=0.9, top_p=1.0, top_k=None, seed=11)
DEADLINES = Deadlines(start_s=300, rollout_s=120, learn_s=120, sync_s=60, checkpoint_s=120)


def run(work: Coroutine[Any, Any, R]) -> R:
    return asyncio.run(work)


def generators(
    folder: str = str(BASE_PATH),
    replicas: int = 1,
    agent: int = 0,
    restarts: int = 0,
    deadlines: Deadlines = DEADLINES,
    **spec_changes: Any,
) -> GeneratorGroup:
    spec = replace(SPEC, model=folder, **spec_changes)
    options = {
        "num_cpus": 0,
        "max_concurrency": 1000,
        "runtime_env": {"env_vars": engine_environment(1, False, True, False)},
    }

    def recipe(replica: int) -> ActorSpec[GenerationActor]:
        name = ActorId("generator", PolicyId((agent,)), replica)
        return ActorSpec(name, GenerationActor, (name, spec, MODEL), options)

    async def place(replica: int) -> ActorSpec[GenerationActor]:
        return recipe(replica)

    return GeneratorGroup([recipe(i) for i in range(replicas)], 1, deadlines, restarts, place)


def learner(
    folder: str = str(BASE_PATH),
    learning_rate: float = 1e-2,
    deadlines: Deadlines = DEADLINES,
    agent: int = 0,
    restarts: int = 0,
    ranks: int = 1,
    device: DedicatedDevice = OWN,
) -> LearnerGroup:
    policy = PolicyId((agent,))
    settings = AgentConfig(
        name=folder,
        learning_rate=learning_rate,
        temperature=SAMPLING.temperature,
        learner=LearnerResources(ranks=ranks),
    )
    optimizer = OptimizerConfig(importance="none")
    arguments = LearnerArguments(folder, settings, MODEL, CreditConfig(), optimizer, "float32", 10, 1)
    names = [ActorId("learner", policy, rank) for rank in range(ranks)]
    recipes = [ActorSpec(name, LearnerActor, (name, arguments, device.by_turns), {"num_cpus": 0}) for name in names]
    return LearnerGroup(policy, recipes, "store", deadlines, restarts, device=device)


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


class Log:
    """A `TrainingHistory` in memory: the batches that were learned from, and a checkpoint if there is one."""

    def __init__(self) -> None:
        self.batches: dict[int, Batch] = {}
        self.saved: tuple[int, str] | None = None

    def checkpoint(self) -> tuple[int, str] | None:
        return self.saved

    def batch(self, step: int) -> Batch:
        return self.batches[step]


async def learn(group: LearnerGroup, batch: Batch) -> UpdateStats:
    """Learn from a batch as the next one."""
    return await group.learn(ClosedQueue(replace(batch, step=group.version)))


async def update_weights(group: LearnerGroup, changed: bool = True) -> int:
    """Publish to generators of which none is lost; the checksum."""
    delivery = await group.update_weights(changed)
    assert delivery is not None
    assert (delivery.version, delivery.failed) == (group.version, {})
    return delivery.checksum


async def sample(group: GeneratorGroup, prompts: Sequence[str]) -> list[Generation]:
    """A group of completions a prompt, all at the same time, each with a seed of its own."""
    calls = (group.generate(prompt, replace(SAMPLING, seed=100 * i)) for i, prompt in enumerate(prompts))
    return list(await asyncio.gather(*calls))


def as_batch(generations: Sequence[Generation], returns: Sequence[float] | None = None) -> Batch:
    """One mini-batch. Returns favour long completions, if they are not given: any rule that tells siblings apart will
    do."""
    groups = [
        returned(
            0,
            g.prompt_ids,
            g.completions,
            tuple(returns or (float(len(set(c.token_ids))) for c in g.completions)),
        )
        for g in generations
    ]
    return build_batch(groups, len(groups))
