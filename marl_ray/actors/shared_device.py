"""The device of a policy's engine and learner: one that is theirs alone, or one where they take turns.

    play    all engines of the device are awake; learners are in the host's memory
    learn   all engines are asleep; one learner after another comes to the device, learns, and goes
    wake    an engine's weights get their memory again, the learner's arrive, keys and values get theirs; it serves

Whoever changes what is on the device holds it meanwhile, and waits for nothing then but for calls with deadlines: never
for another actor's next incarnation. So whoever is lost gives it back. Engines start asleep and learners in the host's memory;
the first publication wakes an engine, in every incarnation.

A learner that is lost is made again at once, whoever plays: engines that sleep for it keep what they were asked, and
get the weights that they had before they go on.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from marl_ray.actors.generation_actor import GenerationActor
from marl_ray.actors.handle import ActorDied, Deadline, Handle
from marl_ray.actors.learner_actor import LearnerActor
from marl_ray.actors.supervisor import Supervisor
from marl_ray.core.concurrency import Condition, DeadlineExceeded, gather

if TYPE_CHECKING:
    from marl_ray.actors.learner_group import LearnerGroup

MEGABYTE = 2**20


class DedicatedDevice:
    """One where nobody waits for another."""

    by_turns = False

    def join(self, learner: LearnerGroup) -> None:
        """This policy's learner is here."""

    @asynccontextmanager
    async def learning(self, learner: LearnerGroup) -> AsyncIterator[None]:
        """A learner computes. Engines that were awake serve again after their next publication."""
        yield

    @asynccontextmanager
    async def borrowed(self) -> AsyncIterator[None]:
        """A learner starts, or learns again what it had learned. Engines that were awake go on afterwards."""
        yield

    @asynccontextmanager
    async def sending(
        self, generators: Sequence[Handle[GenerationActor]], replicas: Supervisor[GenerationActor]
    ) -> AsyncIterator[bool]:
        """A learner sends its weights to these generators. Gives whether one of them sleeps, and so has none."""
        yield False

    async def wait_for_learners(self, learner: LearnerGroup) -> None:
        """Returns when all learners here have applied as many batches as this one: the device is the engines'."""

    def learned(self) -> None:
        """A learner has applied a batch."""

    def pop_memory_metrics(self, step: int) -> Mapping[str, float]:
        """Its metrics of a step, MB; they are forgotten."""
        return {}


class SharedDevice(DedicatedDevice):
    """One where engines and learners take turns. `gpu`: whether it is one, else it is the memory of a node."""

    by_turns = True

    def __init__(self, number: int, gpu: bool, patience: Deadline) -> None:
        self.number = number
        self.gpu = gpu
        self._patience = patience
        """For an engine to fall asleep, and for an actor to tell its memory."""
        self._held = asyncio.Lock()
        self._condition = Condition()
        self._learners: list[LearnerGroup] = []
        self._awake: dict[Handle[GenerationActor], Supervisor[GenerationActor]] = {}
        self._memory: dict[int, dict[str, float]] = {}

    def join(self, learner: LearnerGroup) -> None:
        self._learners.append(learner)

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """An engine starts, and finds out how much memory there is."""
        async with self._held:
            yield

    @asynccontextmanager
    async def learning(self, learner: LearnerGroup) -> AsyncIterator[None]:
        async with self._held:
            if self._awake:
                await self._note(learner.version, "play")
            if await self._put_to_sleep():
                await self._note(learner.version, "asleep")
            yield
            await self._note(learner.version, "learn", learner)

    @asynccontextmanager
    async def borrowed(self) -> AsyncIterator[None]:
        async with self._held:
            asleep = await self._put_to_sleep()
            try:
                yield
            finally:
                for engine, replicas in asleep.items():
                    replicas.mark_stale(engine)

    @asynccontextmanager
    async def sending(
        self, generators: Sequence[Handle[GenerationActor]], replicas: Supervisor[GenerationActor]
    ) -> AsyncIterator[bool]:
        async with self._held:
            asleep = any(generator not in self._awake for generator in generators)
            self._awake |= dict.fromkeys(generators, replicas)  # even where it fails on the way
            yield asleep
            if all(engine in self._awake for engine in self._engines()):
                version = min(learner.version for learner in self._learners)
                await self._note(version - 1, "awake")

    async def wait_for_learners(self, learner: LearnerGroup) -> None:
        await self._condition.wait_for(lambda: all(other.version >= learner.version for other in self._learners))

    def learned(self) -> None:
        self._condition.notify_all()

    def pop_memory_metrics(self, step: int) -> Mapping[str, float]:
        return self._memory.pop(step, {})

    async def _put_to_sleep(self) -> dict[Handle[GenerationActor], Supervisor[GenerationActor]]:
        """All engines that are awake, which it returns; one that does not fall asleep is lost."""
        awake, self._awake = self._awake, {}
        await gather(*(self._asleep(engine, replicas) for engine, replicas in awake.items()))
        return awake

    async def _asleep(self, engine: Handle[GenerationActor], replicas: Supervisor[GenerationActor]) -> None:
        try:
            await engine.call(GenerationActor.sleep).within(self._patience)
        except (ActorDied, DeadlineExceeded) as error:
            replicas.report_lost(engine, str(error))

    async def _note(self, step: int, phase: str, learner: LearnerGroup | None = None) -> None:
        """How much memory is in use; with `learner`, when it was about to leave the device. Of several the most.
        Nothing is noted where somebody is lost meanwhile."""
        ranks = [rank for group in self._learners for rank in group.ranks.serving()]
        try:
            engines = await gather(*(self._ask(engine, GenerationActor.memory) for engine in self._engines()))
            learners = await gather(*(self._ask(rank, LearnerActor.memory) for rank in ranks))
        except (ActorDied, DeadlineExceeded):
            return
        on_it = [] if learner is None else learner.ranks.serving()
        found = [*engines, *(most if rank in on_it else now for rank, (now, most) in zip(ranks, learners, strict=True))]
        used = (max(found) if self.gpu else sum(found)) / MEGABYTE
        name, noted = f"memory/device_{self.number}/{phase}", self._memory.setdefault(step, {})
        noted[name] = round(max(used, noted.get(name, 0.0)), 1)

    async def _ask(self, actor: Handle[Any], method: Any) -> Any:
        return await actor.call(method).within(self._patience)

    def _engines(self) -> list[Handle[GenerationActor]]:
        return [engine for learner in self._learners for engine in learner.engines()]


OWN = DedicatedDevice()
