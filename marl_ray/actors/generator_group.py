"""The generators of one policy as one object, which the rollout calls."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from itertools import chain, count, islice
from typing import Any, Concatenate, ParamSpec, TypeVar

from marl_ray.actors.generation_actor import GenerationActor
from marl_ray.actors.handle import ActorDied, Deadline, Handle
from marl_ray.actors.shared_generator import SharedGeneratorView
from marl_ray.actors.supervisor import ActorSpec, Initialize, RestartLimits, Supervisor
from marl_ray.actors.text_streams import OnText, TextStreams
from marl_ray.config import Deadlines
from marl_ray.core.chat import Prompt, TokenPrompt
from marl_ray.core.concurrency import DeadlineExceeded, gather
from marl_ray.core.episode import Generation, SamplingSpec
from marl_ray.core.errors import UserError
from marl_ray.core.ids import ActorId
from marl_ray.core.peak import Peak
from marl_ray.models.tokenization import NO_VARIABLES

P = ParamSpec("P")
R = TypeVar("R")

REMEDY = "set another model.name, or change resources.generator"


def generator_restarts(deadlines: Deadlines, restarts: int) -> RestartLimits:
    """Return when generators are restarted, and how often."""
    start = Deadline(deadlines.start_s, "start_s", "to start")
    return RestartLimits(start, restarts, deadlines.heartbeat_s, REMEDY)


class GeneratorGroup:
    """The replicas of one policy's generator.

    Requests in flight on a lost replica are retried on another replica, or on the same one after it restarts: a result
    depends only on the seed and the weights. Every method waits at most for the deadlines in `resources.deadlines` and
    raises the errors of `marl_ray.actors.handle`.

    Args:
        workers_per_replica: vLLM workers of one replica.
        initialize, restarts, start_lock: see `Supervisor` and `RestartLimits`.
        reserve: reserves resources for one more replica and returns its spec; None if the group cannot grow.
        release: releases the resources of a removed replica.
        drains: requests in flight are finished before a weight update.
        view: the policy's view of replicas that several policies share, in place of replicas of its own.
    """

    def __init__(
        self,
        specs: Sequence[ActorSpec[GenerationActor]],
        workers_per_replica: int,
        deadlines: Deadlines,
        initialize: Initialize[GenerationActor],
        restarts: int = 0,
        start_lock: Callable[[], AbstractAsyncContextManager[None]] = nullcontext,
        reserve: Callable[[int], Awaitable[ActorSpec[GenerationActor]]] | None = None,
        release: Callable[[ActorId], None] = lambda id: None,
        drains: bool = False,
        view: SharedGeneratorView | None = None,
    ) -> None:
        self.replicas = view or Supervisor(specs, generator_restarts(deadlines, restarts), initialize, start_lock)
        self.workers_per_replica = workers_per_replica
        self._ids = [spec.id for spec in specs]
        self._deadlines = deadlines
        self._reserve = reserve
        self._release = release
        self._drains = drains
        self._in_flight: Counter[Handle[GenerationActor]] = Counter()
        """Number of sequences in flight on each replica."""
        self.most_in_flight = Peak()
        self._streams = TextStreams(self, deadlines.rollout_s)

    async def start(self) -> list[str]:
        """Start all replicas and return their notes."""
        notes = await self.replicas.start()
        return list(chain.from_iterable(notes))

    async def close(self) -> None:
        """End all replicas."""
        await self._streams.close()
        await self.replicas.close()

    @property
    def size(self) -> int:
        """Number of replicas, including starting ones."""
        return len(self._ids) - len(self.replicas.retired())

    @property
    def sequences_in_flight(self) -> int:
        """Number of sequences that replicas are sampling or have queued."""
        # A copy, since the live values are read on another thread (`actor_gauges`).
        return sum(list(self._in_flight.values()))

    async def drain(self, generators: Sequence[Handle[GenerationActor]]) -> None:
        """Finish the requests in flight of these generators if the group drains. They have as long as for a rollout;
        generators that die or take longer are reported as lost."""
        if not self._drains:
            return
        deadline = Deadline(self._deadlines.rollout_s, "rollout_s", "to finish its completions")
        calls = [generator.call(GenerationActor.drain).within(deadline) for generator in generators]
        # The loss of one generator must not cancel the others, which would be left paused.
        results = await asyncio.gather(*calls, return_exceptions=True)
        for generator, result in zip(generators, results, strict=True):
            if isinstance(result, ActorDied | DeadlineExceeded):
                self.replicas.report_lost(generator, str(result))
            elif isinstance(result, BaseException):
                raise result

    async def resize(self, replicas: int) -> None:
        """Start or remove replicas until there are `replicas`, without retired ones, and wait until all of them serve.

        Raises UserError for fewer than one replica; if the cluster cannot provide the resources in time, in which case
        nothing changes; and if a replica does not start, in which case the others are kept.
        """
        if not isinstance(self.replicas, Supervisor):
            raise UserError(
                "policies share these generators (lora.share_engine), whose number is fixed: set "
                "resources.generator.replicas and resume the run"
            )
        if replicas < 1:
            raise UserError(f"{replicas} replicas: an agent needs at least one generator")
        self._remove(self.replicas.retired())
        self._remove(self._ids[replicas:])  # the highest numbers, whose bundles were added last
        missing = replicas - len(self._ids)
        for spec in await self._reserve_replicas(missing):
            self._ids.append(spec.id)
            self.replicas.add(spec)
        self._ids.sort(key=lambda id: id.replica)  # a removed number may have been used again
        try:
            await self.replicas.wait_ready(all_members=True)
        except UserError:
            self._remove(self.replicas.retired())
            raise

    async def _reserve_replicas(self, number: int) -> list[ActorSpec[GenerationActor]]:
        """Reserve resources for replicas under the first unused numbers. Raises UserError without reserving any if the
        cluster has no place for all."""
        if not number:
            return []
        if self._reserve is None:
            raise UserError("a generator that shares its GPU with the learner cannot have further replicas")
        used = {id.replica for id in self._ids}
        unused = (replica for replica in count() if replica not in used)
        specs: list[ActorSpec[GenerationActor]] = []
        try:
            for replica in islice(unused, number):
                specs.append(await self._reserve(replica))
        except BaseException:
            for spec in specs:
                self._release(spec.id)
            raise
        return specs

    def _remove(self, ids: Sequence[ActorId]) -> None:
        assert isinstance(self.replicas, Supervisor), "the group has replicas of its own"
        for id in ids:
            self._ids.remove(id)
            self.replicas.remove(id)
            self._release(id)

    async def generate(
        self, prompt: Prompt | TokenPrompt, sampling: SamplingSpec, priority: int = 0, history: tuple[int, ...] = ()
    ) -> Generation:
        """Sample a group of completions of a prompt, which continues the conversation `history`, if there is one.
        Requests with a lower `priority` value, the index of their batch, are scheduled first."""
        deadline = Deadline(self._deadlines.rollout_s, "rollout_s", "to generate")
        generation = await self.call(
            sampling.num_generations, deadline, GenerationActor.generate, prompt, sampling, priority, history
        )
        return self._confirmed(generation)

    async def stream(
        self,
        prompt: Prompt | TokenPrompt,
        sampling: SamplingSpec,
        on_text: OnText | None,
        raw: bool = False,
        history: tuple[int, ...] = (),
    ) -> Generation:
        """Sample one completion, whose text reaches `on_text` in parts (`TextStreams.stream`)."""
        return self._confirmed(await self._streams.stream(prompt, sampling, on_text, raw, history))

    def _confirmed(self, generation: Generation) -> Generation:
        """Record that a replica has sampled, if it has: a prompt may leave no room."""
        if generation.completions:
            self.replicas.confirm_success()
        return generation

    async def prompt_lengths(
        self, prompts: Sequence[Prompt], template_kwargs: Mapping[str, Any] = NO_VARIABLES
    ) -> list[int]:
        """Return the number of tokens of each prompt."""
        deadline = Deadline(self._deadlines.start_s, "start_s", "to measure the prompts")
        return await self.call(0, deadline, GenerationActor.prompt_lengths, prompts, template_kwargs)

    async def fingerprints(self, texts: list[str]) -> list[str]:
        """Return the fingerprint of each replica's tokenizer."""
        deadline = Deadline(self._deadlines.start_s, "start_s", "to check its tokenizer")
        replicas = self.replicas.serving()
        return await gather(*(r.call(GenerationActor.fingerprint, texts).within(deadline) for r in replicas))

    async def call(
        self,
        sequences: int,
        deadline: Deadline,
        method: Callable[Concatenate[GenerationActor, P], Coroutine[Any, Any, R]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> R:
        """Call the replica with the fewest sequences in flight, to which this call adds `sequences`, and retry after
        losses. Raises DeadlineExceeded if two calls in a row miss the deadline."""
        was_late = False
        while True:
            serving = await self.replicas.wait_ready()
            replica = min(serving, key=self._load)
            # Before the first await, so that calls which start together spread over the replicas.
            self._in_flight[replica] += sequences
            self.most_in_flight.note(self.sequences_in_flight)
            try:
                return await replica.call(method, *args, **kwargs).within(deadline)
            except (ActorDied, DeadlineExceeded) as error:
                is_late = isinstance(error, DeadlineExceeded)
                # One late call may be the fault of its replica. Two on different incarnations are a limit too short.
                if was_late and is_late:
                    raise
                was_late = is_late
                self.replicas.report_lost(replica, str(error))
            finally:
                self._in_flight[replica] -= sequences
                self.most_in_flight.note(self.sequences_in_flight)

    def _load(self, replica: Handle[GenerationActor]) -> tuple[bool, int]:
        """Return the order of preference for a call: a replica whose heartbeat is overdue comes last."""
        return self.replicas.is_suspect(replica), self._in_flight[replica]
