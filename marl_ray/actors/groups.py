"""One agent's generators and one agent's learner, as the trainer talks to them.

Each group owns the supervisor of its actors. Every method waits no longer than `resources.deadlines` says, and raises
what `marl_ray.actors.handle` lists.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from marl_ray.actors.generator import Generator
from marl_ray.actors.handle import Deadline, Handle
from marl_ray.actors.learner import LearnerActor
from marl_ray.actors.supervisor import Recipe, Supervisor
from marl_ray.cluster.plan import Transport
from marl_ray.config.schema import Deadlines
from marl_ray.core.batch import Batch, UpdateStats
from marl_ray.core.sampling import Generation, SamplingSpec
from marl_ray.core.tree import WeightVersion
from marl_ray.core.waiting import together

P = ParamSpec("P")
R = TypeVar("R")

GRACE_S = 10.0
"""A learner names the generator that it waited for in vain; the wait for the learner, a little longer, does not end
before that."""


class GeneratorGroup:
    """The replicas of one agent. `ranks_each` are the workers of one replica's engine."""

    def __init__(self, recipes: Sequence[Recipe[Generator]], ranks_each: int, deadlines: Deadlines) -> None:
        self.replicas = Supervisor(recipes, Deadline(deadlines.start_s, "start_s", "to start"))
        self.ranks_each = ranks_each
        self._deadlines = deadlines
        self._in_flight: Counter[Handle[Generator]] = Counter()

    async def start(self) -> list[str]:
        """Start all replicas; returns what people should know of them."""
        return [note for started in await self.replicas.start() for note in started.notes]

    async def close(self) -> None:
        """End all replicas."""
        await self.replicas.close()

    async def generate(self, prompt: str, sampling: SamplingSpec) -> Generation:
        """Sample a group, on the replica with the fewest sequences in flight."""
        replica = min(self.replicas.serving(), key=self._in_flight.__getitem__)
        self._in_flight[replica] += sampling.num_generations
        try:
            deadline = Deadline(self._deadlines.rollout_s, "rollout_s", "to generate")
            return await replica.call(Generator.generate, prompt, sampling).within(deadline)
        finally:
            self._in_flight[replica] -= sampling.num_generations

    async def prompt_lengths(self, prompts: list[str]) -> list[int]:
        """Number of tokens of each prompt."""
        deadline = Deadline(self._deadlines.start_s, "start_s", "to measure the prompts")
        return await self.replicas.serving()[0].call(Generator.prompt_lengths, prompts).within(deadline)

    async def fingerprints(self, texts: list[str]) -> list[str]:
        """Each replica's fingerprint of its tokenizer."""
        deadline = Deadline(self._deadlines.start_s, "start_s", "to try its tokenizer")
        replicas = self.replicas.serving()
        return await together(*(replica.call(Generator.fingerprint, texts).within(deadline) for replica in replicas))


class LearnerGroup:
    """The ranks of one agent's learner: each call goes to all of them, and the first rank's answer counts."""

    def __init__(self, recipes: Sequence[Recipe[LearnerActor]], transport: Transport, deadlines: Deadlines) -> None:
        self.ranks = Supervisor(recipes, Deadline(deadlines.start_s, "start_s", "to start"))
        self.transport = transport
        self._deadlines = deadlines

    async def start(self) -> list[str]:
        """Start all ranks; returns what people should know of them."""
        return [note for started in await self.ranks.start() for note in started.notes]

    async def close(self) -> None:
        """End all ranks."""
        await self.ranks.close()

    async def connect(self, generators: GeneratorGroup) -> None:
        """Join the agent's generators for weight sync."""
        deadline = self._sync("to meet its generators")
        handles, sync_s = generators.replicas.serving(), self._deadlines.sync_s
        await self._all(deadline, LearnerActor.connect, handles, generators.ranks_each, self.transport, sync_s)

    async def publish(self, version: WeightVersion) -> int:
        """Push the weights to the generators as `version`; returns the acknowledged checksum."""
        return await self._all(self._sync("to publish its weights"), LearnerActor.publish, version)

    async def relabel(self, version: WeightVersion) -> int:
        """Let the generators serve the weights that they have as `version`; returns the acknowledged checksum."""
        return await self._all(self._sync("to publish its weights"), LearnerActor.relabel, version)

    async def update(self, batch: Batch) -> UpdateStats:
        """Learn from a batch: one optimizer step a mini-batch."""
        deadline = Deadline(self._deadlines.learn_s, "learn_s", "to learn")
        return await self._all(deadline, LearnerActor.update, batch)

    async def save(self, folder: Path) -> None:
        """Write model and optimizer, as `load` reads them."""
        await self._all(self._files("to write its checkpoint"), LearnerActor.save, str(folder))

    async def load(self, folder: Path) -> None:
        """Go on from what `save` wrote."""
        await self._all(self._files("to load its checkpoint"), LearnerActor.load, str(folder))

    async def export(self, folder: Path, texts: list[str]) -> None:
        """Write the model as transformers loads it. The tokenizer that was written is tried on `texts`."""
        await self._all(self._files("to write its model"), LearnerActor.export, str(folder), texts)

    async def sees(self, path: Path) -> bool:
        """Whether the learner's node sees `path` of the driver's file system."""
        deadline = Deadline(self._deadlines.start_s, "start_s", "to look at the run folder")
        return await self._all(deadline, LearnerActor.sees, str(path))

    async def fingerprint(self, texts: list[str]) -> str:
        """The fingerprint of its tokenizer."""
        deadline = Deadline(self._deadlines.start_s, "start_s", "to try its tokenizer")
        return await self._all(deadline, LearnerActor.fingerprint, texts)

    def _sync(self, purpose: str) -> Deadline:
        return Deadline(self._deadlines.sync_s + GRACE_S, "sync_s", purpose)

    def _files(self, purpose: str) -> Deadline:
        return Deadline(self._deadlines.checkpoint_s, "checkpoint_s", purpose)

    async def _all(
        self,
        deadline: Deadline,
        method: Callable[Concatenate[LearnerActor, P], R],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> R:
        ranks = self.ranks.serving()
        answers = await together(*(rank.call(method, *args, **kwargs).within(deadline) for rank in ranks))
        return answers[0]
