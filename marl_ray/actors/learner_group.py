"""The learner of one policy as one object, which the trainer calls.

A lost learner is restored in its next incarnation from the last checkpoint and the batch log, up to
`LearnerGroup.version`, and the interrupted call is repeated: each batch is applied exactly once. If one rank is lost,
all are replaced.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from typing import Any, Concatenate, ParamSpec, TypeVar

import ray

from marl_ray.actors.generation_actor import GenerationActor
from marl_ray.actors.generator_group import GeneratorGroup
from marl_ray.actors.handle import ActorDied, Deadline, Handle
from marl_ray.actors.learner_actor import LearnerActor
from marl_ray.actors.shared_device import DEDICATED, DedicatedDevice
from marl_ray.actors.shared_learner import SharedLearnerView
from marl_ray.actors.start_barrier import StartBarrier
from marl_ray.actors.supervisor import Initialize, Supervisor
from marl_ray.actors.weight_update_client import AgreementProbe
from marl_ray.cluster.placement_plan import Transport
from marl_ray.config import Deadlines
from marl_ray.core.batch import Group, GroupQueue, TrainingHistory, UpdateStats
from marl_ray.core.concurrency import DeadlineExceeded, gather
from marl_ray.core.errors import UserError
from marl_ray.core.ids import ActorId, PolicyId
from marl_ray.weights.receiver import WeightSyncResult

P = ParamSpec("P")
R = TypeVar("R")

GRACE_S = 10.0
"""Additional time for calls in which a learner waits for generators, so that the learner's own error, which names the
generator, arrives first."""
REMEDY = "set another model.name, or change resources.learner"
RankSupervisor = Supervisor[LearnerActor] | SharedLearnerView
Supervise = Callable[[Initialize[LearnerActor]], RankSupervisor]
"""Creates the supervisor of a learner's ranks, given their initialisation."""


class LearnerGroup:
    """The ranks of one policy's learner. Each call goes to all ranks, waits at most for the deadlines in
    `resources.deadlines`, raises the errors of `marl_ray.actors.handle`, and returns the result of rank 0."""

    def __init__(
        self,
        policy: PolicyId,
        supervise: Supervise,
        num_ranks: int,
        transport: Transport,
        deadlines: Deadlines,
        device: DedicatedDevice = DEDICATED,
    ) -> None:
        self.policy = policy
        self.transport = transport
        self.version = 0
        """Number of batches that all ranks have reported as learned, which is the version of the weights."""
        self.device = device
        device.register(self)
        self.ranks = supervise(self._initialize_rank)
        self._num_ranks = num_ranks
        self._deadlines = deadlines
        self._generators: GeneratorGroup | None = None
        self._history: TrainingHistory | None = None
        self._probe: AgreementProbe | None = None
        self._compared: set[tuple[ActorId, int]] = set()
        """Generators, by name and incarnation, that agreed with the learner when they started."""
        self._loaded: tuple[int, str] | None = None
        """Step and folder of the state that `load` was given."""
        self._unwritten: tuple[int, str] | None = None
        """Version and folder of the copy that is not on disk yet."""
        self._barrier = StartBarrier(num_ranks)
        """Barrier of the ranks that start at present."""
        self._notes: list[str] = []
        self._update_lock = asyncio.Lock()
        self._call_lock = asyncio.Lock()

    async def start(self) -> list[str]:
        """Start all ranks and return their notes."""
        notes = await self.ranks.start()
        return [*chain.from_iterable(notes), *self._notes]

    async def close(self) -> None:
        """End all ranks."""
        await self.ranks.close()

    async def connect(
        self, generators: GeneratorGroup, history: TrainingHistory, probe: AgreementProbe | None = None
    ) -> None:
        """Send the weights to these generators from now on, and restore a lost learner from `history`. Compare every
        generator that starts from now on with the learner by `probe`."""
        self._generators = generators
        self._history = history
        self._probe = probe
        await self._retry_on_loss(self._connect_ranks)

    async def learn(self, queue: GroupQueue) -> UpdateStats:
        """Learn from the next batch while its groups arrive: one optimizer step per mini-batch. If a rank is lost, the
        batch starts again from the first group. Raises ValueError for a batch that is not the next one."""
        if queue.step != self.version:
            raise ValueError(f"{self.policy} takes batch {self.version} next and cannot take batch {queue.step}")
        stats = await self._retry_on_loss(lambda ranks: self._learn_batch(ranks, queue))
        self.version += 1
        self.ranks.confirm_success()
        self.device.notify_trained()
        return stats

    async def update_weights(self, changed: bool) -> WeightSyncResult | None:
        """Let all generators serve the learner's weights as `version`. Weights that have not `changed` since the last
        update are sent again only if an engine sleeps or this incarnation has not sent any. Returns None if no
        generator serves."""
        await self.device.wait_for_learners(self)
        async with self._update_lock:
            generators = self._connected.replicas.serving()
            if not generators:
                return None
            return await self._send_weights(generators, changed)

    async def initialize_generator(self, generator: Handle[GenerationActor]) -> None:
        """Give a generator the current weights before it serves. Generators that start before `connect` receive them
        with the first `update_weights`. Raises UserError if a new generator does not agree with the learner."""
        if self._generators is None:
            return
        incarnation = (generator.id, generator.incarnation)
        probe = None if incarnation in self._compared else self._probe
        async with self._update_lock:  # later updates include this generator
            result = await self._send_weights([generator], changed=True, probe=probe)
            if generator.id in result.failed:
                raise UserError(result.failed[generator.id])
        gap = result.logprob_gap
        if probe is not None and gap is not None and not gap <= probe.bound:  # also if the gap is NaN
            raise UserError(
                f"{generator.id} started, but differs from its learner by {gap:.3g} nats per token, more than "
                f"max_logprob_gap {probe.bound:g} (docs/how-to/gpu.md)"
            )
        self._compared.add(incarnation)

    async def logprob_gap(self, groups: Sequence[Group]) -> float:
        """Return the mean absolute difference of the learner's and the groups' log-probabilities, nats per token."""

        async def compare(ranks: Sequence[Handle[LearnerActor]]) -> float:
            deadline = self._deadline("learn_s", "to score tokens")
            async with self.device.lock_for_training(self):
                gaps = await self._call_all(ranks, deadline, LearnerActor.logprob_gap, groups)
            return gaps[0]

        return await self._retry_on_loss(compare)

    def engine_handles(self) -> list[Handle[GenerationActor]]:
        """Return the serving generators of the policy; none before `connect`."""
        return self._generators.replicas.serving() if self._generators else []

    async def save(self, folder: str) -> None:
        """Write model and optimizer state for `load`."""
        await self.begin_save(folder)
        await self.finish_save()

    async def begin_save(self, folder: str) -> None:
        """Copy model and optimizer state, which `finish_save` writes while training continues."""
        await self._run(self._deadline("checkpoint_s", "to copy its state"), LearnerActor.begin_save, folder)
        self._unwritten = (self.version, folder)

    async def finish_save(self, may_restart: bool = True) -> None:
        """Wait until the copy is on disk. If a rank is lost meanwhile, the next incarnation makes the same copy again;
        unless the learner `may_restart`, ActorDied is raised."""
        deadline = self._deadline("checkpoint_s", "to write its checkpoint")

        async def write(ranks: Sequence[Handle[LearnerActor]]) -> None:
            # Beside other calls, which wait for each other and for the device: a write uses neither.
            with self._report_losses(ranks):
                await gather(*(rank.call(LearnerActor.finish_save).within(deadline) for rank in ranks))

        if may_restart:
            await self._retry_on_loss(write)
        elif len(self.ranks.serving()) < self._num_ranks:
            raise ActorDied(f"{self.policy} learner is lost")
        else:
            await write(self.ranks.serving())
        self._unwritten = None

    async def load(self, folder: str, step: int) -> None:
        """Continue from a folder that `save` wrote after `step` batches."""
        self._loaded = (step, folder)
        self.version = step

        async def load(ranks: Sequence[Handle[LearnerActor]]) -> None:
            deadline = self._deadline("checkpoint_s", "to load its checkpoint")
            async with self.device.lock_for_restore():
                await self._call_all(ranks, deadline, LearnerActor.load, folder, step)

        await self._retry_on_loss(load)

    async def export(self, folder: str, texts: list[str]) -> None:
        """Write the model in the format of transformers, and verify the written tokenizer on `texts`."""
        await self._run(self._deadline("checkpoint_s", "to write its model"), LearnerActor.export, folder, texts)

    async def sees_path(self, path: str) -> bool:
        """Return whether the nodes of all ranks have `path` of the driver's file system."""
        deadline = self._deadline("start_s", "to look for the run folder")
        return all(await self._run(deadline, LearnerActor.sees_path, path))

    async def fingerprint(self, texts: list[str]) -> str:
        """Return the fingerprint of the tokenizer."""
        deadline = self._deadline("start_s", "to check its tokenizer")
        return (await self._run(deadline, LearnerActor.fingerprint, texts))[0]

    async def _learn_batch(self, ranks: Sequence[Handle[LearnerActor]], queue: GroupQueue) -> UpdateStats:
        """Send each group once: when it arrives, or with the complete batch if engines and learner take turns."""
        deadline = self._deadline("learn_s", "to learn")
        sent = 0
        if not self.device.takes_turns:
            # Until the first mini-batch is complete.
            while groups := await queue.get(sent):
                argument = _for_all(ranks, groups)
                await self._call_all(ranks, deadline, LearnerActor.accumulate, queue.step, sent, argument)
                sent += len(groups)
        batch = await queue.batch()
        if sent:
            first, *others = batch.mini_batches
            unsent = replace(first, groups=first.groups[sent:])
            batch = replace(batch, mini_batches=(unsent, *others))
        async with self.device.lock_for_training(self):
            stats = await self._call_all(ranks, deadline, LearnerActor.finish, _for_all(ranks, batch), sent)
        return stats[0]

    async def _send_weights(
        self, generators: Sequence[Handle[GenerationActor]], changed: bool, probe: AgreementProbe | None = None
    ) -> WeightSyncResult:
        """Send the weights to these generators. Generators that die or miss the deadline are reported as lost."""
        await self._connected.drain(generators)
        deadline = self._deadline("sync_s", "to update weights", GRACE_S)
        replicas: Any = self._connected.replicas  # for devices on which engines sleep, which policies do not share

        async def send(ranks: Sequence[Handle[LearnerActor]]) -> WeightSyncResult | None:
            async with self.device.lock_for_weight_update(generators, replicas) as asleep:
                arguments = (list(generators), changed or asleep, probe)
                results = await self._call_all(ranks, deadline, LearnerActor.update_weights, *arguments)
            return results[0]

        result = await self._retry_on_loss(send)
        assert result is not None, "rank 0 sends"
        for generator in generators:
            if generator.id in result.failed:
                replicas.report_lost(generator, result.failed[generator.id])
        return result

    async def _initialize_rank(self, rank: Handle[LearnerActor]) -> None:
        """Restore a rank together with all others of its incarnation; the rank that starts last restores all."""
        for other in self.ranks.serving():
            self.ranks.report_lost(other, f"it works with {rank.id}, which restarts")
        barrier = self._barrier
        async with barrier.wait(rank, self._deadlines.start_s) as is_last:
            if is_last:
                self._barrier = StartBarrier(self._num_ranks)  # for the next incarnations
                await self._restore([barrier.arrived[id] for id in sorted(barrier.arrived)])

    async def _restore(self, ranks: Sequence[Handle[LearnerActor]]) -> None:
        """Load the last checkpoint, and replay the logged batches up to the version."""
        if self._num_ranks > 1:
            async with self.device.lock_for_restore():
                await self._form_rank_group(ranks)
        checkpoint = self._loaded
        if self._history is not None:
            # A checkpoint of this process is newer than the one that `load` was given.
            checkpoint = await asyncio.to_thread(self._history.checkpoint) or self._loaded
        step = 0
        if checkpoint is not None:
            step, folder = checkpoint
            deadline = self._deadline("checkpoint_s", "to load its checkpoint")
            async with self.device.lock_for_restore():
                await self._call_during_restore(ranks, deadline, LearnerActor.load, folder, step)
        await self._repeat_begin_save(ranks, step)
        if step < self.version:
            async with self.device.lock_for_restore():
                await self._replay(ranks, step)
        if self._generators is not None:
            await self._connect_ranks(ranks)

    async def _replay(self, ranks: Sequence[Handle[LearnerActor]], step: int) -> None:
        """Repeat the updates from batch `step` to the version, which gives the same weights as before the loss."""
        if self._history is None:
            raise UserError(f"{self.policy} learner: there is no log of its batches")
        deadline = self._deadline("learn_s", "to learn")
        for number in range(step, self.version):
            batch = await asyncio.to_thread(self._history.batch, number)
            await self._call_during_restore(ranks, deadline, LearnerActor.update, _for_all(ranks, batch))
            await self._repeat_begin_save(ranks, number + 1)

    async def _repeat_begin_save(self, ranks: Sequence[Handle[LearnerActor]], version: int) -> None:
        """Copy the restored state again if its copy was lost before it was written."""
        if self._unwritten is None:
            return
        copied_version, folder = self._unwritten
        if copied_version == version:
            deadline = self._deadline("checkpoint_s", "to copy its state")
            await self._call_during_restore(ranks, deadline, LearnerActor.begin_save, folder)

    async def _form_rank_group(self, ranks: Sequence[Handle[LearnerActor]]) -> None:
        """Connect the ranks through a rendezvous on rank 0's node, and load the model."""
        deadline = self._deadline("start_s", "to connect its ranks")
        nodes = {rank.location.ip for rank in ranks if rank.location is not None}
        on_one_machine = len(nodes) == 1
        limits = self._deadlines
        # Within a call, a rank may wait for another rank as long as the call may take.
        timeout_s = max(limits.start_s, limits.learn_s, limits.sync_s, limits.checkpoint_s)
        rendezvous = await ranks[0].call(LearnerActor.open_rendezvous, on_one_machine, timeout_s).within(deadline)
        notes = await self._call_during_restore(ranks, deadline, LearnerActor.join_rendezvous, rendezvous)
        self._notes = notes[0]

    async def _connect_ranks(self, ranks: Sequence[Handle[LearnerActor]]) -> None:
        """Connect the ranks to the generators, which reject earlier incarnations from now on."""
        deadline = self._deadline("sync_s", "to connect to its generators", GRACE_S)
        serving = self._connected.replicas.serving()
        workers = self._connected.workers_per_replica
        arguments = (serving, ranks[0].incarnation, workers, self.transport, self._deadlines.sync_s)
        await self._call_during_restore(ranks, deadline, LearnerActor.connect, *arguments)

    @property
    def _connected(self) -> GeneratorGroup:
        if self._generators is None:
            raise RuntimeError(f"{self.policy} learner is not connected to its generators")
        return self._generators

    def _deadline(self, setting: str, purpose: str, grace_s: float = 0.0) -> Deadline:
        return Deadline(getattr(self._deadlines, setting) + grace_s, setting, purpose)

    async def _retry_on_loss(self, work: Callable[[Sequence[Handle[LearnerActor]]], Awaitable[R]]) -> R:
        """Run `work` with all ranks, and again from the beginning with the next incarnation if a rank is lost. Raises
        DeadlineExceeded if two incarnations in a row miss the deadline."""
        was_late = False
        while True:
            ranks = await self.ranks.wait_ready(all_members=True)
            try:
                return await work(ranks)
            except _RankLost as lost:
                cause = lost.__cause__
                if was_late and isinstance(cause, DeadlineExceeded):
                    raise cause from None
                was_late = isinstance(cause, DeadlineExceeded)

    async def _run(
        self, deadline: Deadline, method: Callable[Concatenate[LearnerActor, P], R], *args: P.args, **kwargs: P.kwargs
    ) -> list[R]:
        """Return the results of all ranks, and repeat the call with the next incarnation after a loss."""
        return await self._retry_on_loss(lambda ranks: self._call_all(ranks, deadline, method, *args, **kwargs))

    async def _call_all(
        self,
        ranks: Sequence[Handle[LearnerActor]],
        deadline: Deadline,
        method: Callable[Concatenate[LearnerActor, P], R],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> list[R]:
        """Return the results of all ranks. If one is lost, all are replaced. Raises _RankLost. Calls to a rank are
        serialised, so a deadline covers only the call itself and not the time it spends queued."""
        async with self._call_lock, self.device.lock_for_call():
            with self._report_losses(ranks):
                return await gather(*(rank.call(method, *args, **kwargs).within(deadline) for rank in ranks))

    @contextmanager
    def _report_losses(self, ranks: Sequence[Handle[LearnerActor]]) -> Iterator[None]:
        """Report all ranks as lost if a call within the context finds one lost or late, and raise _RankLost."""
        try:
            yield
        except (ActorDied, DeadlineExceeded) as error:
            for rank in ranks:
                self.ranks.report_lost(rank, str(error))
            raise _RankLost(str(error)) from error

    async def _call_during_restore(
        self,
        ranks: Sequence[Handle[LearnerActor]],
        deadline: Deadline,
        method: Callable[Concatenate[LearnerActor, P], R],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> list[R]:
        """Call as `_call_all` does, without the call lock, which the interrupted call may hold, and without a report of
        losses: the start fails instead. All calls are submitted before any other coroutine runs, so that all ranks
        receive calls in the same order."""
        async with self.device.lock_for_call():
            return await gather(*(rank.call(method, *args, **kwargs).within(deadline) for rank in ranks))


def _for_all(ranks: Sequence[Handle[LearnerActor]], argument: Any) -> Any:
    """Return an argument of calls to all ranks. Ray serialises it once, and the ranks of a node read it in place."""
    return ray.put(argument) if len(ranks) > 1 else argument


class _RankLost(ActorDied):
    """A rank is lost, and the supervisor has been notified."""
