"""One policy's learner, as the trainer talks to it.

A learner's state is a function of the batches that it has learned from. One that is lost is made again in its next
life, from the last checkpoint and the batch log up to the group's clock, and what it was asked is asked again: whether
it had died before or after it was done, each batch is applied once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Concatenate, ParamSpec, TypeVar

from marl_ray.actors.device import OWN, OwnDevice
from marl_ray.actors.generator import Generator
from marl_ray.actors.generators import GeneratorGroup
from marl_ray.actors.handle import ActorDied, Deadline, Handle
from marl_ray.actors.learner import LearnerActor
from marl_ray.actors.shared_learner import SharedRanks
from marl_ray.actors.supervisor import Care, Recipe, Supervisor
from marl_ray.cluster.plan import Transport
from marl_ray.config.resources import Deadlines
from marl_ray.core.batch import Batch, BatchStream, Group, History, UpdateStats
from marl_ray.core.errors import UserError
from marl_ray.core.ids import Policy
from marl_ray.core.waiting import WaitExpired, together
from marl_ray.weights.receiving import Delivery

P = ParamSpec("P")
R = TypeVar("R")

GRACE_S = 10.0
"""A learner names the generator that it waited for in vain; the wait for the learner, a little longer, does not end
before that."""


class LearnerGroup:
    """The ranks of one policy's learner: each call goes to all of them, and the first rank's answer counts.

    `recipes` are those of the ranks, of which there are none where its process is `shared` with other policies.
    `restarts`: see `Care`; `device`: where it may have to wait for its engines, and they for it. Every method waits no
    longer than `resources.deadlines` says, and raises what `marl_ray.actors.handle` lists.
    """

    def __init__(
        self,
        policy: Policy,
        recipes: Sequence[Recipe[LearnerActor]],
        transport: Transport,
        deadlines: Deadlines,
        restarts: int = 0,
        shared: SharedRanks | None = None,
        device: OwnDevice = OWN,
    ) -> None:
        self.policy = policy
        self.device = device
        device.join(self)
        start = Deadline(deadlines.start_s, "start_s", "to start")
        self.ranks = shared or Supervisor(recipes, Care(start, restarts, deadlines.heartbeat_s))
        self.ranks.fit = self._restore
        self.transport = transport
        self.clock = 0
        """Batches applied, of which the answer has come; so the version of the weights."""
        self._deadlines = deadlines
        self._generators: GeneratorGroup | None = None
        self._history: History | None = None
        self._loaded: tuple[int, str] | None = None
        self._publishing = asyncio.Lock()

    async def start(self) -> list[str]:
        """Start all ranks; returns what people should know of them."""
        return [note for notes in await self.ranks.start() for note in notes]

    async def close(self) -> None:
        """End all ranks."""
        await self.ranks.close()

    async def connect(self, generators: GeneratorGroup, history: History) -> None:
        """Join the policy's generators, which get the weights from here, those of later lives before they serve.
        `history` is what a learner that is lost is made again from."""
        self._history = history
        self._generators = generators
        generators.replicas.fit = self._fit
        await self._survive(self._introduce)

    async def learn(self, stream: BatchStream) -> UpdateStats:
        """Learn from the clock's next batch, group by group as they come: one optimizer step a mini-batch."""
        if stream.step != self.clock:
            raise ValueError(f"{self.policy} has learned from {self.clock} batches, and gets number {stream.step}")
        stats = await self._survive(lambda ranks: self._fold(ranks, stream))
        self.clock += 1
        self.device.learned()
        return stats

    async def publish(self, changed: bool) -> Delivery | None:
        """Let all generators serve the learner's weights as version `clock`; those that did not change since they were
        sent last are not sent again, but to engines that sleep. None where no generator serves: each gets them before
        it does again."""
        await self.device.nobody_behind(self)
        async with self._publishing:
            handles = self._connected.replicas.serving()
            return await self._deliver(handles, changed) if handles else None

    async def logprob_gap(self, groups: Sequence[Group]) -> float:
        """Mean absolute difference between its log-probabilities and those that the groups come with, nats a token."""
        deadline = Deadline(self._deadlines.learn_s, "learn_s", "to score tokens")

        async def compare(ranks: Sequence[Handle[LearnerActor]]) -> float:
            async with self.device.learning(self):
                return await self._all(ranks, deadline, LearnerActor.logprob_gap, groups)

        return await self._survive(compare)

    def engines(self) -> list[Handle[Generator]]:
        """The generators that get the weights from here and serve."""
        return [] if self._generators is None else self._generators.replicas.serving()

    async def save(self, folder: str) -> None:
        """Write model and optimizer, as `load` reads them."""
        deadline = self._files("to write its checkpoint")
        await self._survive(lambda ranks: self._all(ranks, deadline, LearnerActor.save, folder))

    async def load(self, folder: str, step: int) -> None:
        """Go on from what `save` wrote after `step` batches."""
        self._loaded, self.clock = (step, folder), step
        deadline = self._files("to load its checkpoint")
        await self._survive(lambda ranks: self._all(ranks, deadline, LearnerActor.load, folder, step))

    async def export(self, folder: str, texts: list[str]) -> None:
        """Write the model as transformers loads it. The tokenizer that was written is tried on `texts`."""
        deadline = self._files("to write its model")
        await self._survive(lambda ranks: self._all(ranks, deadline, LearnerActor.export, folder, texts))

    async def sees(self, path: str) -> bool:
        """Whether the learner's node sees `path` of the driver's file system."""
        deadline = Deadline(self._deadlines.start_s, "start_s", "to look at the run folder")
        return await self._survive(lambda ranks: self._all(ranks, deadline, LearnerActor.sees, path))

    async def fingerprint(self, texts: list[str]) -> str:
        """The fingerprint of its tokenizer."""
        deadline = Deadline(self._deadlines.start_s, "start_s", "to try its tokenizer")
        return await self._survive(lambda ranks: self._all(ranks, deadline, LearnerActor.fingerprint, texts))

    async def _fold(self, ranks: Sequence[Handle[LearnerActor]], stream: BatchStream) -> UpdateStats:
        """Each group is sent once: as it comes, or with the whole, if those who play need the device until then."""
        deadline, sent = self._learn(), 0
        while not self.device.by_turns and (groups := await stream.groups(sent)):
            await self._all(ranks, deadline, LearnerActor.accumulate, stream.step, sent, groups)
            sent += len(groups)
        rest = _without(await stream.batch(), sent)
        async with self.device.learning(self):
            return await self._all(ranks, deadline, LearnerActor.finish, rest, sent)

    async def _deliver(self, generators: Sequence[Handle[Generator]], changed: bool) -> Delivery:
        """To these generators; those that do not take the weights are lost."""
        deadline = Deadline(self._deadlines.sync_s + GRACE_S, "sync_s", "to publish its weights")

        async def send(ranks: Sequence[Handle[LearnerActor]]) -> Delivery:
            async with self.device.sending(generators, self._connected.replicas) as asleep:
                return await self._all(ranks, deadline, LearnerActor.publish, list(generators), changed or asleep)

        delivery = await self._survive(send)
        for generator in generators:
            if generator.id in delivery.failed:
                self._connected.replicas.lose(generator, delivery.failed[generator.id])
        return delivery

    async def _fit(self, generator: Handle[Generator]) -> None:
        """Make a generator of a later life serve what the others do."""
        async with self._publishing:  # no publication goes on without it from here on
            delivery = await self._deliver([generator], changed=True)
            if generator.id in delivery.failed:
                raise UserError(delivery.failed[generator.id])

    async def _restore(self, rank: Handle[LearnerActor]) -> None:
        """Give a rank the group's state: the last checkpoint, then the log's batches up to the clock."""
        checkpoint = (self._history.checkpoint() if self._history else None) or self._loaded
        step = 0
        if checkpoint is not None:
            step, folder = checkpoint
            await rank.call(LearnerActor.load, folder, step).within(self._files("to load its checkpoint"))
        if step < self.clock:
            async with self.device.borrowed():
                await self._replay(rank, step)
        if self._generators is not None:
            await self._introduce([rank])

    async def _replay(self, rank: Handle[LearnerActor], step: int) -> None:
        """Learn again from batches number `step` and after."""
        for number in range(step, self.clock):
            if self._history is None:
                raise UserError(f"{self.policy} learner: there is no log of its batches")
            batch = await asyncio.to_thread(self._history.batch, number)
            await rank.call(LearnerActor.update, batch).within(self._learn())

    async def _introduce(self, ranks: Sequence[Handle[LearnerActor]]) -> None:
        """To the generators, which refuse earlier lives from now on."""
        generators = self._connected
        deadline = Deadline(self._deadlines.sync_s + GRACE_S, "sync_s", "to meet its generators")
        handles, sync_s, ranks_each = generators.replicas.serving(), self._deadlines.sync_s, generators.ranks_each
        for rank in ranks:
            call = rank.call(LearnerActor.connect, handles, rank.life, ranks_each, self.transport, sync_s)
            await call.within(deadline)

    @property
    def _connected(self) -> GeneratorGroup:
        if self._generators is None:
            raise RuntimeError(f"{self.policy} learner has not met its generators")
        return self._generators

    def _learn(self) -> Deadline:
        return Deadline(self._deadlines.learn_s, "learn_s", "to learn")

    def _files(self, purpose: str) -> Deadline:
        return Deadline(self._deadlines.checkpoint_s, "checkpoint_s", purpose)

    async def _survive(self, work: Callable[[Sequence[Handle[LearnerActor]]], Awaitable[R]]) -> R:
        """`work` with all ranks; where one is lost, from the beginning with those of the next life.

        Raises WaitExpired where the next life, too, takes longer than the deadline: so would all others.
        """
        late = False
        while True:
            ranks = await self.ranks.ready(everyone=True)
            try:
                return await work(ranks)
            except _RankLost as lost:
                if late and isinstance(lost.__cause__, WaitExpired):
                    raise lost.__cause__ from None
                late = isinstance(lost.__cause__, WaitExpired)

    async def _all(
        self,
        ranks: Sequence[Handle[LearnerActor]],
        deadline: Deadline,
        method: Callable[Concatenate[LearnerActor, P], R],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> R:
        """The first rank's answer. Where one is lost all are: they work together. Raises _RankLost."""
        try:
            answers = await together(*(rank.call(method, *args, **kwargs).within(deadline) for rank in ranks))
        except (ActorDied, WaitExpired) as error:
            for rank in ranks:
                self.ranks.lose(rank, str(error))
            raise _RankLost from error
        return answers[0]


class _RankLost(Exception):
    """A rank is gone, and has been told to the supervisor."""


def _without(batch: Batch, sent: int) -> Batch:
    """The batch without the first groups of its first mini-batch."""
    if not sent:
        return batch
    first, *others = batch.mini_batches
    return replace(batch, mini_batches=(replace(first, groups=first.groups[sent:]), *others))
