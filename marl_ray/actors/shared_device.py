"""Locks for the device of a policy's engine and learner: dedicated to them, divided in fixed parts, or used in turns.

In turns, where `resources.colocate` says what stays on the device (`Residency`):

    rollout    all engines on the device are awake
    training   all engines are asleep, without KV caches (kv, stream) or without weights too (turns); one learner after
               another trains, with its whole state on the device before and after (kv), without its optimizer state
               (stream), or with all of its state in host memory before and after (turns)
    wake       engines receive the learner's weights, allocate the KV cache and serve

Every change of the memory on a shared device holds its lock. The holder waits only for calls with deadlines, never for
the restart of an actor, so a lost actor releases the lock.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

from marl_ray.actors.generation_actor import GenerationActor
from marl_ray.actors.handle import ActorDied, Deadline, Handle
from marl_ray.actors.learner_actor import LearnerActor
from marl_ray.actors.supervisor import Supervisor
from marl_ray.config.resource_sections import Residency
from marl_ray.core.concurrency import Condition, DeadlineExceeded, ReadWriteLock, gather

if TYPE_CHECKING:
    from marl_ray.actors.learner_group import LearnerGroup

MEGABYTE = 2**20


class DedicatedDevice:
    """Devices of engine and learner that need no lock."""

    takes_turns = False

    def register(self, learner: LearnerGroup) -> None:
        """Add a learner to the device."""

    @asynccontextmanager
    async def lock_for_engine_start(self) -> AsyncIterator[None]:
        """Hold the device while an engine starts and measures free memory."""
        yield

    @asynccontextmanager
    async def lock_for_learner_start(self) -> AsyncIterator[None]:
        """Hold the device while a learner loads its model."""
        yield

    @asynccontextmanager
    async def lock_for_call(self) -> AsyncIterator[None]:
        """Hold the device during a call to a learner."""
        yield

    @asynccontextmanager
    async def lock_for_training(self, learner: LearnerGroup) -> AsyncIterator[None]:
        """Hold the device for an update. Sleeping engines serve again after their next weight update."""
        yield

    @asynccontextmanager
    async def lock_for_restore(self) -> AsyncIterator[None]:
        """Hold the device while a learner starts, loads a checkpoint or replays batches. Engines that were awake then
        receive their previous weights again and continue."""
        yield

    @asynccontextmanager
    async def lock_for_weight_update(
        self, generators: Sequence[Handle[GenerationActor]], replicas: Supervisor[GenerationActor]
    ) -> AsyncIterator[bool]:
        """Hold the device while a learner sends its weights to `generators`. Yields whether one of them is asleep and
        therefore has no weights."""
        yield False

    async def wait_for_learners(self, learner: LearnerGroup) -> None:
        """Wait until all learners on the device have applied as many batches as `learner`."""

    def notify_trained(self) -> None:
        """Wake up `wait_for_learners` after a learner has applied a batch."""

    def pop_memory_metrics(self, step: int) -> Mapping[str, float]:
        """Remove and return the memory metrics of a step, in MB."""
        return {}


class DividedGpus(DedicatedDevice):
    """GPUs that engines and learners use at the same time, if the size of an engine's KV cache is not known before it
    starts; one object for all of a run, since two fractions can be on one GPU.

    While an engine starts, vLLM compares the memory in use on the whole GPU before and after, and takes the difference
    for the engine's own. Engines therefore start one at a time, while learners neither start nor compute. `deadline`
    limits the calls that return unused memory of learners to the GPU before.
    """

    def __init__(self, deadline: Deadline) -> None:
        self._deadline = deadline
        self._lock = ReadWriteLock()
        self._learners: list[LearnerGroup] = []

    def register(self, learner: LearnerGroup) -> None:
        self._learners.append(learner)

    @asynccontextmanager
    async def lock_for_engine_start(self) -> AsyncIterator[None]:
        async with self._lock.exclusive():
            for rank in _serving_ranks(self._learners):
                with suppress(ActorDied, DeadlineExceeded):  # another call will find the loss
                    await rank.call(LearnerActor.release_memory).within(self._deadline)
            yield

    @asynccontextmanager
    async def lock_for_call(self) -> AsyncIterator[None]:
        async with self._lock.shared():
            yield

    lock_for_learner_start = lock_for_call


class SharedDevice(DedicatedDevice):
    """A device that engines and learners use in turns: a GPU (`is_gpu`), or the memory of a node.

    deadline: limit of the calls that put an engine to sleep or query an actor's memory.
    residency: what stays on the device.
    measures_memory: True if vLLM measures the memory for an engine's KV cache; then engines start one at a time.
    """

    takes_turns = True

    def __init__(
        self,
        number: int,
        is_gpu: bool,
        deadline: Deadline,
        residency: Residency = "turns",
        measures_memory: bool = True,
    ) -> None:
        self.number = number
        self.is_gpu = is_gpu
        self._deadline = deadline
        self._residency = residency
        self._measures_memory = measures_memory
        self._lock = ReadWriteLock()
        self._condition = Condition()
        self._learners: list[LearnerGroup] = []
        self._awake: dict[Handle[GenerationActor], Supervisor[GenerationActor]] = {}
        """Engines that use the device, with their supervisors."""
        self._memory: dict[int, dict[str, float]] = {}
        """Memory metrics by step."""

    def register(self, learner: LearnerGroup) -> None:
        self._learners.append(learner)

    @asynccontextmanager
    async def lock_for_engine_start(self) -> AsyncIterator[None]:
        if not self.is_gpu:
            yield
            return
        # With "turns" the engine falls asleep at the end of its start, and vLLM refuses to fall asleep while other
        # processes allocate, so that less memory is free afterwards.
        needs_lock_alone = self._measures_memory or self._residency == "turns"
        async with self._lock.exclusive() if needs_lock_alone else self._lock.shared():
            yield

    @asynccontextmanager
    async def lock_for_learner_start(self) -> AsyncIterator[None]:
        if not self.is_gpu:
            yield
            return
        async with self.lock_for_restore():
            yield

    @asynccontextmanager
    async def lock_for_training(self, learner: LearnerGroup) -> AsyncIterator[None]:
        async with self._lock.exclusive():
            if self._awake:
                await self._record_memory(learner.version, "play")
            if await self._sleep_engines():
                await self._record_memory(learner.version, "asleep")
            yield
            await self._record_memory(learner.version, "learn", learner)

    @asynccontextmanager
    async def lock_for_restore(self) -> AsyncIterator[None]:
        async with self._lock.exclusive():
            asleep = await self._sleep_engines()
            try:
                yield
            finally:
                # Engines that were awake serve again once they have received their weights.
                for engine, replicas in asleep.items():
                    replicas.initialize_again(engine)

    @asynccontextmanager
    async def lock_for_weight_update(
        self, generators: Sequence[Handle[GenerationActor]], replicas: Supervisor[GenerationActor]
    ) -> AsyncIterator[bool]:
        async with self._lock.exclusive():
            is_asleep = not self._awake.keys() >= set(generators)
            self._awake |= dict.fromkeys(generators, replicas)  # even if the update fails halfway
            # With other residencies an engine keeps its weights while it sleeps.
            yield is_asleep and self._residency == "turns"
            if self._awake.keys() >= set(self._engines()):
                version = min(learner.version for learner in self._learners)
                await self._record_memory(version - 1, "awake")

    async def wait_for_learners(self, learner: LearnerGroup) -> None:
        await self._condition.wait_for(lambda: all(other.version >= learner.version for other in self._learners))

    def notify_trained(self) -> None:
        self._condition.notify_all()

    def pop_memory_metrics(self, step: int) -> Mapping[str, float]:
        return self._memory.pop(step, {})

    async def _sleep_engines(self) -> dict[Handle[GenerationActor], Supervisor[GenerationActor]]:
        """Put all awake engines to sleep and return them. An engine that does not fall asleep is lost."""

        async def sleep(engine: Handle[GenerationActor], replicas: Supervisor[GenerationActor]) -> None:
            try:
                await engine.call(GenerationActor.sleep).within(self._deadline)
            except (ActorDied, DeadlineExceeded) as error:
                replicas.report_lost(engine, str(error))

        was_awake = self._awake
        self._awake = {}
        await gather(*(sleep(engine, replicas) for engine, replicas in was_awake.items()))
        return was_awake

    async def _record_memory(self, step: int, phase: str, trained: LearnerGroup | None = None) -> None:
        """Record the maximum memory in use per phase; the learner that has just `trained` counts with its peak. Record
        nothing if an actor is lost meanwhile."""
        ranks = _serving_ranks(self._learners)
        try:
            sizes = await gather(*(self._query(engine, GenerationActor.memory) for engine in self._engines()))
            rank_sizes = await gather(*(self._query(rank, LearnerActor.memory) for rank in ranks))
        except (ActorDied, DeadlineExceeded):
            return
        trained_ranks = [] if trained is None else trained.ranks.serving()
        for rank, (now, peak) in zip(ranks, rank_sizes, strict=True):
            sizes.append(peak if rank in trained_ranks else now)
        # Each process on a GPU reports the memory in use on the whole GPU; on a CPU each reports its own.
        used = max(sizes) if self.is_gpu else sum(sizes)
        name = f"memory/device_{self.number}/{phase}"
        recorded = self._memory.setdefault(step, {})
        recorded[name] = round(max(used / MEGABYTE, recorded.get(name, 0.0)), 1)

    async def _query(self, actor: Handle[Any], method: Any) -> Any:
        return await actor.call(method).within(self._deadline)

    def _engines(self) -> list[Handle[GenerationActor]]:
        engines = []
        for learner in self._learners:
            engines += learner.engine_handles()
        return engines


def _serving_ranks(learners: Sequence[LearnerGroup]) -> list[Handle[LearnerActor]]:
    ranks = []
    for learner in learners:
        ranks += learner.ranks.serving()
    return ranks


DEDICATED = DedicatedDevice()
