"""One engine and one learner for a check, and the steps that checks are made of."""

from __future__ import annotations

import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from marl_ray.actors.generation_actor import GenerationActor
from marl_ray.actors.generator_group import GeneratorGroup
from marl_ray.actors.handle import Deadline
from marl_ray.actors.run_actors import RunActors, start_actors
from marl_ray.config import AgentConfig, Config, from_tree
from marl_ray.core.batch import Batch, Group, GroupQueue, MiniBatch
from marl_ray.core.chat import Prompt
from marl_ray.core.concurrency import gather
from marl_ray.core.episode import Generation, SamplingSpec, Task, sibling_calls
from marl_ray.data.loading import load_tasks
from marl_ray.environments import ENVIRONMENTS
from marl_ray.environments.base import BaseEnvironment

Numbers = dict[str, Any]
"""Measurements of a check by name."""

PROMPTS = 8
TOKENS = 64
GROUP = 8
GAPS = {"float32": 1e-3, "bfloat16": 0.1}
"""Maximum mean absolute difference between the log-probabilities of engine and learner, in nats per token."""


class Skipped(Exception):
    """Raised if this machine or this version lacks the tested feature."""


@dataclass(frozen=True, slots=True)
class Machine:
    """The test machine: its number of GPUs (0: CPU only) and the model to load."""

    gpus: int
    model: str

    @property
    def dtype(self) -> str:
        if self.gpus:
            return "bfloat16"
        return "float32"

    def config(self, model: str | None = None, **sections: Any) -> Config:
        """Return a config with one agent on the toy tasks. `sections` are sections of a config file."""
        grpo = {
            "num_generations": GROUP,
            "max_new_tokens": TOKENS,
            "learning_rate": 1e-4,
        }
        grpo |= sections.pop("grpo", {})
        resources: dict[str, Any] = {"sandbox": {"workers": 1, "cpus": 0.1}}
        resources |= sections.pop("resources", {})
        tree = {
            "model": {
                "name": model or self.model,
                "max_length": 512,
                "model_kwargs": {"torch_dtype": self.dtype},
            },
            "dataset": {"name": "bundled:toy"},
            "grpo": grpo,
            "resources": resources,
            **sections,
        }
        return from_tree(tree, "grpo")

    def require(self, gpus: int) -> None:
        """Raise Skipped if the machine has fewer GPUs."""
        if self.gpus < gpus:
            raise Skipped(f"needs {gpus} GPUs; this machine has {self.gpus}")


@dataclass
class Exercise:
    """A started engine and learner, and a `TrainingHistory` of its batches in memory."""

    machine: Machine
    config: Config
    actors: RunActors
    folder: Path
    batches: list[Batch] = field(default_factory=list)
    saved: tuple[int, str] | None = None

    def __post_init__(self) -> None:
        [self.learner] = self.actors.learners
        self.generators = self.actors.generators[0]
        self.environment = ENVIRONMENTS.get(self.config.environment).from_config(self.config)

    def checkpoint(self) -> tuple[int, str] | None:
        return self.saved

    def batch(self, step: int) -> Batch:
        return self.batches[step]

    async def update_weights(self) -> Numbers:
        """Send the learner's weights. The sender compares checksums and raises an exception if they differ."""
        begun = time.perf_counter()
        result = await self.learner.update_weights(changed=True)
        if result is None or result.failed:
            raise RuntimeError(f"weight synchronisation failed: {result}")
        seconds = time.perf_counter() - begun
        return {
            "sent MB": result.sent_bytes / 2**20,
            "sync s": seconds,
            "checksum": f"{result.checksum:x}",
        }

    async def sample(self, prompts: int = PROMPTS) -> list[Generation]:
        """Return one group per prompt."""
        group = self.config.training.group_sizes[0]
        return await sample(self.config.agents[0], group, self.generators, first_prompts(self.environment, prompts))

    async def compare(self, sampled: Sequence[Generation]) -> float:
        """Return the difference of the log-probabilities of engine and learner. Raises RuntimeError if it is too
        large."""
        gap = await self.learner.logprob_gap(groups_of(sampled))
        return below(gap, GAPS[self.machine.dtype])

    async def learn(self, sampled: Sequence[Generation]) -> None:
        """Take an optimizer step. Raises RuntimeError if it changes no weights."""
        groups = groups_of(sampled)
        mini_batch = MiniBatch(tuple(groups), len(groups))
        batch = Batch(len(self.batches), (mini_batch,))
        self.batches.append(batch)
        queue = GroupQueue(batch.step)
        queue.put(groups)
        queue.close(batch)
        stats = await self.learner.learn(queue)
        if not stats.optimizer_steps or not stats.grad_norm > 0:
            raise RuntimeError(f"the update changed no weights: {stats}")

    async def stream(self, on_text: Callable[[str], None]) -> Generation:
        """Sample one completion of `max_new_tokens` tokens, whose text reaches `on_text` in parts."""
        agent = self.config.agents[0]
        [prompt] = first_prompts(self.environment, 1)
        tokens = agent.max_new_tokens
        spec = SamplingSpec(1, tokens, agent.temperature, 1.0, None, seed=0, min_new_tokens=tokens)
        return await self.generators.stream(prompt, spec, on_text)

    async def exit_at_weight(self, number: int) -> None:
        """Let the generator kill itself when it loads weight `number` of the next update."""
        deadline = Deadline(60.0, "sync_s", "to prepare its loss")
        [replica] = self.generators.replicas.serving()
        await replica.call(GenerationActor.exit_at_weight, number).within(deadline)

    async def engine_facts(self) -> Numbers:
        """Return the engine's model runner, attention backend and scheduling mode."""
        deadline = Deadline(60.0, "sync_s", "to describe its engine")
        replica = self.generators.replicas.serving()[0]
        return await replica.call(GenerationActor.engine_facts).within(deadline)


@asynccontextmanager
async def exercise(machine: Machine, config: Config) -> AsyncIterator[tuple[Exercise, Numbers]]:
    """Start engine and learner, and send the first weights. Yields the exercise and its first measurements."""
    begun = time.perf_counter()
    actors = await start_actors(config, 8)
    try:
        found: Numbers = {
            "start s": time.perf_counter() - begun,
            "transport": actors.transport,
        }
        with tempfile.TemporaryDirectory() as folder:
            running = Exercise(machine, config, actors, Path(folder))
            await running.learner.connect(running.generators, running)
            found |= await running.update_weights()
            yield running, found
    finally:
        await actors.close()


async def sample(
    agent: AgentConfig, group: int, generators: GeneratorGroup, prompts: Sequence[Prompt]
) -> list[Generation]:
    """Return one group of `group` completions per prompt."""
    specs = []
    for seed in range(len(prompts)):
        specs.append(SamplingSpec(group, agent.max_new_tokens, agent.temperature, 1.0, None, seed))
    return await gather(*map(generators.generate, prompts, specs))


def first_prompts(environment: BaseEnvironment, number: int) -> list[Prompt]:
    """Return the agent's first prompts of `number` toy tasks."""
    tasks: list[Task] = load_tasks("bundled:toy", "train")[:number]
    return [environment.first_prompts(task)[0] for task in tasks]


def on_one_device(machine: Machine) -> dict[str, Any]:
    """Return the section `resources` for an engine and a learner on one GPU at the same time."""
    if not machine.gpus:
        return {}
    return {"generator": {"gpus": 0.5, "gpu_memory_utilization": 0.4}, "learner": {"gpus": 0.5}}


def groups_of(sampled: Sequence[Generation]) -> list[Group]:
    """Return groups with returns that differ within a group: the index of each completion."""
    groups = []
    for answer in sampled:
        returns = tuple(map(float, range(len(answer.completions))))
        mean = sum(returns) / len(returns)
        weights = tuple((value - mean) / len(returns) for value in returns)
        calls = sibling_calls(answer.prompt_ids, answer.completions)
        groups.append(Group(0, calls, returns, weights))
    return groups


def count_tokens(sampled: Sequence[Generation]) -> int:
    count = 0
    for answer in sampled:
        for completion in answer.completions:
            count += len(completion.token_ids)
    return count


def below(gap: float, bound: float) -> float:
    if not gap <= bound:
        raise RuntimeError(
            f"log-probabilities of engine and learner differ by {gap:.3g} nats per token, more than {bound:g}"
        )
    return gap
