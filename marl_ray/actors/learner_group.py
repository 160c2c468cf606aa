"""One policy's learner, as the trainer talks to it.

A learner's state is a function of the batches that it has learned from. One that is lost is made again in its next
incarnation, from the last checkpoint and the batch log up to the group's clock, and what it was asked is asked again: whether
it had died before or after it was done, each batch is applied once.

Ranks work together, so they live together: where one is lost all are, and those of the next incarnations meet, load and learn
again as one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Concatenate, ParamSpec, TypeVar

from marl_ray.actors.generation_actor import GenerationActor
from marl_ray.actors.generator_group import GeneratorGroup
from marl_ray.actors.handle import ActorDied, Deadline, Handle
from marl_ray.actors.learner_actor import LearnerActor
from marl_ray.actors.shared_device import OWN, DedicatedDevice
from marl_ray.actors.shared_learner import SharedLearnerView
from marl_ray.actors.supervisor import ActorSpec, RestartPolicy, Supervisor
from marl_ray.cluster.placement_plan import Transport
from marl_ray.config import Deadlines
from marl_ray.core.batch import Batch, Group, TrainingHistory, UpdateStats
from marl_ray.core.concurrency import Condition, DeadlineExceeded, gather, wait_within
from marl_ray.core.errors import UserError
from marl_ray.core.group_queue import GroupQueue
from marl_ray.core.ids import ActorId, PolicyId
from marl_ray.weights.receiver import WeightSyncResult

P = ParamSpec("P")
R = TypeVar("R")

GRACE_S = 10.0
"""A learner names the generator that it waited for in vain; the wait for the learner, a little longer, does not end
before that."""


class LearnerGroup:
    """The ranks of one policy's learner: each call goes to all of them, and the first rank's answer counts.

    `recipes` are those of the ranks, of which there are none where its process is `shared` with other policies.
    `restarts`: see `RestartPolicy`; `device`: where it may have to wait for its engines, and they for it. Every method waits no
    longer than `resources.deadlines` says, and raises what `marl_ray.actors.handle` lists.
    """

    def __init__(
        self,
        policy: PolicyId,
        recipes: Sequence[ActorSpec[LearnerActor]],
        transport: Transport,
        deadlines: Deadlines,
        restarts: int = 0,
        shared: SharedLearnerView | None = None,
        device: DedicatedDevice = OWN,
    ) -> None:
        self.policy = policy
        self.device = device
        device.join(self)
        start = Deadline(deadlines.start_s, "start_s", "to start")
        self.ranks = shared or Supervisor(recipes, RestartPolicy(start, restarts, deadlines.heartbeat_s))
        self.ranks.fit = self._fit_rank
        self._size = max(1, len(recipes))
        self.transport = transport
        self.version = 0
        """Batches applied, of which the answer has come; so the version of the weights."""
        self._deadlines = deadlines
        self._generators: GeneratorGroup | None = None
        self._history: TrainingHistory | None = None
        self._loaded: tuple[int, str] | None = None
        self._gathering = _Gathering(self._size)
        self._notes: list[str] = []
        self._publishing = asyncio.Lock()
        self._turns = asyncio.Lock()

    async def start(self) -> list[str]:
        """Start all ranks; returns what people should know of them."""
        notes = [note for notes in await self.ranks.start() for note in notes]
        return notes + self._notes

    async def close(self) -> None:
        """End all ranks."""
        await self.ranks.close()

    async def connect(self, generators: GeneratorGroup, history: TrainingHistory) -> None:
        """Join the policy's generators, which get the weights from here, those of later incarnations before they serve.
        `history` is what a learner that is lost is made again from."""
        self._history = history
        self._generators = generators
        generators.replicas.fit = self._fit
        await self._survive(self._introduce)

    async def learn(self, queue: GroupQueue) -> UpdateStats:
        """Learn from the next batch while its groups arrive: one optimizer step per mini-batch.

        If a rank is lost, the batch starts again from the first group of the queue. Raises ValueError for a batch that
        is not the next one.
        """
        if queue.step != self.version:
            raise ValueError(
                f"{self.policy} has learned from {self.version} batches and cannot take batch {queue.step}"
            )
        stats = await self._survive(lambda ranks: self._learn_batch(ranks, queue))
        self.version += 1
        self.device.learned()
        return stats

    async def update_weights(self, changed: bool) -> WeightSyncResult | None:
        """Let all generators serve the learner's weights as version `clock`; those that did not change since they were
        sent last are not sent again, but to engines that sleep. None where no generator serves: each gets them before
        it does again."""
        await self.device.wait_for_learners(self)
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

    def engines(self) -> list[Handle[GenerationActor]]:
        """The generators that get the weights from here and serve."""
        return [] if self._generators is None else self._generators.replicas.serving()

    async def save(self, folder: str) -> None:
        """Write model and optimizer, as `load` reads them."""
        deadline = self._files("to write its checkpoint")
        await self._survive(lambda ranks: self._all(ranks, deadline, LearnerActor.save, folder))

    async def load(self, folder: str, step: int) -> None:
        """Go on from what `save` wrote after `step` batches."""
        self._loaded, self.version = (step, folder), step
        deadline = self._files("to load its checkpoint")
        await self._survive(lambda ranks: self._all(ranks, deadline, LearnerActor.load, folder, step))

    async def export(self, folder: str, texts: list[str]) -> None:
        """Write the model as transformers loads it. The tokenizer that was written is tried on `texts`."""
        deadline = self._files("to write its model")
        await self._survive(lambda ranks: self._all(ranks, deadline, LearnerActor.export, folder, texts))

    async def sees_path(self, path: str) -> bool:
        """Whether the node of every rank sees `path` of the driver's file system."""
        deadline = Deadline(self._deadlines.start_s, "start_s", "to look at the run folder")
        return all(await self._survive(lambda ranks: self._answers(ranks, deadline, LearnerActor.sees_path, path)))

    async def fingerprint(self, texts: list[str]) -> str:
        """The fingerprint of its tokenizer."""
        deadline = Deadline(self._deadlines.start_s, "start_s", "to try its tokenizer")
        return await self._survive(lambda ranks: self._all(ranks, deadline, LearnerActor.fingerprint, texts))

    async def _learn_batch(self, ranks: Sequence[Handle[LearnerActor]], queue: GroupQueue) -> UpdateStats:
        """Send each group once: when it arrives, or with the complete batch on a device that the engines share."""
        deadline, sent = self._learn(), 0
        while not self.device.by_turns and (groups := await queue.get(sent)):
            await self._answers(ranks, deadline, LearnerActor.accumulate, queue.step, sent, groups)
            sent += len(groups)
        rest = _without(await queue.batch(), sent)
        async with self.device.learning(self):
            return (await self._answers(ranks, deadline, LearnerActor.finish, rest, sent))[0]

    async def _deliver(self, generators: Sequence[Handle[GenerationActor]], changed: bool) -> WeightSyncResult:
        """To these generators; those that do not take the weights are lost."""
        deadline = Deadline(self._deadlines.sync_s + GRACE_S, "sync_s", "to publish its weights")

        async def send(ranks: Sequence[Handle[LearnerActor]]) -> WeightSyncResult | None:
            async with self.device.sending(generators, self._connected.replicas) as asleep:
                return await self._all(
                    ranks, deadline, LearnerActor.update_weights, list(generators), changed or asleep
                )

        delivery = await self._survive(send)
        assert delivery is not None, "rank 0 sends"
        for generator in generators:
            if generator.id in delivery.failed:
                self._connected.replicas.report_lost(generator, delivery.failed[generator.id])
        return delivery

    async def _fit(self, generator: Handle[GenerationActor]) -> None:
        """Make a generator of a later incarnation serve what the others do."""
        async with self._publishing:  # no publication goes on without it from here on
            delivery = await self._deliver([generator], changed=True)
            if generator.id in delivery.failed:
                raise UserError(delivery.failed[generator.id])

    async def _fit_rank(self, rank: Handle[LearnerActor]) -> None:
        """Give a rank the group's state, together with all others of its incarnations: the last to have started does it."""
        for other in self.ranks.serving():
            self.ranks.report_lost(other, f"it works with {rank.id}, which begins anew")
        gathering = self._gathering
        async with gathering.entered(rank, self._deadlines.start_s) as last:
            if last:
                self._gathering = _Gathering(self._size)  # for those of later incarnations
                await self._restore([gathering.ranks[id] for id in sorted(gathering.ranks)])

    async def _restore(self, ranks: Sequence[Handle[LearnerActor]]) -> None:
        """The last checkpoint, then the log's batches up to the clock."""
        if self._size > 1:
            await self._meet(ranks)
        checkpoint = (self._history.checkpoint() if self._history else None) or self._loaded
        step = 0
        if checkpoint is not None:
            step, folder = checkpoint
            await self._each(ranks, self._files("to load its checkpoint"), LearnerActor.load, folder, step)
        if step < self.version:
            async with self.device.borrowed():
                await self._replay(ranks, step)
        if self._generators is not None:
            await self._introduce(ranks)

    async def _replay(self, ranks: Sequence[Handle[LearnerActor]], step: int) -> None:
        """Learn again from batches number `step` and after."""
        for number in range(step, self.version):
            if self._history is None:
                raise UserError(f"{self.policy} learner: there is no log of its batches")
            batch = await asyncio.to_thread(self._history.batch, number)
            await self._each(ranks, self._learn(), LearnerActor.update, batch)

    async def _meet(self, ranks: Sequence[Handle[LearnerActor]]) -> None:
        """The ranks find each other at rank 0's node, and load the model."""
        deadline, limits = Deadline(self._deadlines.start_s, "start_s", "to meet its ranks"), self._deadlines
        nodes = {rank.location.ip for rank in ranks if rank.location is not None}
        # Within a call, one may wait for another as long as the call may take.
        timeout_s = max(limits.start_s, limits.learn_s, limits.sync_s, limits.checkpoint_s)
        meeting = await ranks[0].call(LearnerActor.open_rendezvous, len(nodes) == 1, timeout_s).within(deadline)
        self._notes, *_ = await self._each(ranks, deadline, LearnerActor.join, meeting)

    async def _introduce(self, ranks: Sequence[Handle[LearnerActor]]) -> None:
        """To the generators, which refuse earlier incarnations from now on."""
        generators = self._connected
        deadline = Deadline(self._deadlines.sync_s + GRACE_S, "sync_s", "to meet its generators")
        handles, sync_s, workers_per_replica = (
            generators.replicas.serving(),
            self._deadlines.sync_s,
            generators.workers_per_replica,
        )
        arguments = (handles, ranks[0].incarnation, workers_per_replica, self.transport, sync_s)
        await self._each(ranks, deadline, LearnerActor.connect, *arguments)

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
        """`work` with all ranks; where one is lost, from the beginning with those of the next incarnation.

        Raises DeadlineExceeded where the next incarnation, too, takes longer than the deadline: so would all others.
        """
        late = False
        while True:
            ranks = await self.ranks.wait_ready(all_members=True)
            try:
                return await work(ranks)
            except _RankLost as lost:
                if late and isinstance(lost.__cause__, DeadlineExceeded):
                    raise lost.__cause__ from None
                late = isinstance(lost.__cause__, DeadlineExceeded)

    async def _all(
        self,
        ranks: Sequence[Handle[LearnerActor]],
        deadline: Deadline,
        method: Callable[Concatenate[LearnerActor, P], R],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> R:
        """The first rank's answer. Raises as `_answers`."""
        return (await self._answers(ranks, deadline, method, *args, **kwargs))[0]

    async def _answers(
        self,
        ranks: Sequence[Handle[LearnerActor]],
        deadline: Deadline,
        method: Callable[Concatenate[LearnerActor, P], R],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> list[R]:
        """All ranks' answers. Where one is lost all are: they work together. Raises _RankLost.

        A rank does one thing at a time, and so it is asked: the deadline is for its own work, not for a long update
        that a publication or a checkpoint would have to wait for there.
        """
        async with self._turns:
            try:
                calls = [rank.call(method, *args, **kwargs) for rank in ranks]
                return await gather(*(call.within(deadline) for call in calls))
            except (ActorDied, DeadlineExceeded) as error:
                for rank in ranks:
                    self.ranks.report_lost(rank, str(error))
                raise _RankLost from error

    @staticmethod
    async def _each(
        ranks: Sequence[Handle[LearnerActor]],
        deadline: Deadline,
        method: Callable[Concatenate[LearnerActor, P], R],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> list[R]:
        """All ranks' answers. They are asked before anything else runs, so all of them in one order."""
        return await gather(*(rank.call(method, *args, **kwargs).within(deadline) for rank in ranks))


class _Gathering:
    """Ranks that have started their next incarnations, to be fitted by the last of them."""

    def __init__(self, size: int) -> None:
        self.ranks: dict[ActorId, Handle[LearnerActor]] = {}
        self._size = size
        self._over = False
        self._failure: str | None = None
        self._condition = Condition()

    @asynccontextmanager
    async def entered(self, rank: Handle[LearnerActor], deadline_s: float) -> AsyncIterator[bool]:
        """Whether this rank is the last; it goes on at once, the others when it has left. Raises DeadlineExceeded where it
        does not come, and UserError where it fails."""
        self.ranks[rank.id] = rank
        if len(self.ranks) == self._size:
            self._condition.notify_all()
            try:
                yield True
            except BaseException as error:
                self._failure = str(error) or type(error).__name__
                raise
            finally:
                self._over = True
                self._condition.notify_all()
            return
        try:
            whole = self._condition.wait_for(lambda: len(self.ranks) == self._size)
            await wait_within(deadline_s, f"the ranks beside {rank.id} to start", "start_s", whole)
        except BaseException:
            del self.ranks[rank.id]
            raise
        await self._condition.wait_for(lambda: self._over)
        if self._failure is not None:
            raise UserError(f"{rank.id} starts with all its ranks, or not: {self._failure}")
        yield False


class _RankLost(Exception):
    """A rank is gone, and has been told to the supervisor."""


def _without(batch: Batch, sent: int) -> Batch:
    """The batch without the first groups of its first mini-batch."""
    if not sent:
        return batch
    first, *others = batch.mini_batches
    return replace(batch, mini_batches=(replace(first, groups=first.groups[sent:]), *others))
