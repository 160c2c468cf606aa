"""One agent's learner, as the trainer talks to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Concatenate, ParamSpec, TypeVar

from marl_ray.actors.generators import GeneratorGroup
from marl_ray.actors.handle import Deadline
from marl_ray.actors.learner import LearnerActor
from marl_ray.actors.supervisor import Recipe, Supervisor
from marl_ray.cluster.plan import Transport
from marl_ray.config.resources import Deadlines
from marl_ray.core.batch import Batch, UpdateStats
from marl_ray.core.tree import WeightVersion
from marl_ray.core.waiting import together

P = ParamSpec("P")
R = TypeVar("R")

GRACE_S = 10.0
"""A learner names the generator that it waited for in vain; the wait for the learner, a little longer, does not end
before that."""


class LearnerGroup:
    """The ranks of one agent's learner: each call goes to all of them, and the first rank's answer counts.

    Every method waits no longer than `resources.deadlines` says, and raises what `marl_ray.actors.handle` lists.
    """

    def __init__(
        self, agent: int, recipes: Sequence[Recipe[LearnerActor]], transport: Transport, deadlines: Deadlines
    ) -> None:
        self.agent = agent
        self.ranks = Supervisor(recipes, Deadline(deadlines.start_s, "start_s", "to start"))
        self.transport = transport
        self._deadlines = deadlines

    async def start(self) -> list[str]:
        """Start all ranks; returns what people should know of them."""
        return [note for notes in await self.ranks.start() for note in notes]

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

    async def save(self, folder: str) -> None:
        """Write model and optimizer, as `load` reads them."""
        await self._all(self._files("to write its checkpoint"), LearnerActor.save, folder)

    async def load(self, folder: str) -> None:
        """Go on from what `save` wrote."""
        await self._all(self._files("to load its checkpoint"), LearnerActor.load, folder)

    async def export(self, folder: str, texts: list[str]) -> None:
        """Write the model as transformers loads it. The tokenizer that was written is tried on `texts`."""
        await self._all(self._files("to write its model"), LearnerActor.export, folder, texts)

    async def sees(self, path: str) -> bool:
        """Whether the learner's node sees `path` of the driver's file system."""
        deadline = Deadline(self._deadlines.start_s, "start_s", "to look at the run folder")
        return await self._all(deadline, LearnerActor.sees, path)

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
