"""The client of a learner for one update of its generators' weights."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import ray

from marl_ray.actors.generation_actor import GenerationActor
from marl_ray.actors.handle import ActorDied, Call, Deadline, Handle, wait_all
from marl_ray.core.batch import Group
from marl_ray.core.concurrency import DeadlineExceeded
from marl_ray.core.episode import SamplingSpec, WeightVersion, sibling_calls
from marl_ray.core.ids import ActorId
from marl_ray.weights.receiver import Acknowledgement, ReceiverLostError, TransferStage

if TYPE_CHECKING:  # imports torch, which a driver need not load to start
    from marl_ray.weights.deltas import WeightUpdate

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class AgreementProbe:
    """A prompt to compare a new generator with its learner, and the maximum difference in nats per token."""

    prompt: str
    sampling: SamplingSpec
    bound: float


class WeightUpdateClient:
    """The `WeightReceivers` of one weight update from incarnation `incarnation` of a learner: blocking calls to all
    generators of the policy at once.

    `deadline_s` limits the update as a whole. A generator that dies or misses the deadline is added to `failed` and not
    called again; all other errors are raised.
    """

    def __init__(
        self,
        generators: Sequence[Handle[GenerationActor]],
        workers_per_replica: int,
        incarnation: int,
        deadline_s: float,
    ) -> None:
        self.failed: dict[ActorId, str] = {}
        self._generators = list(generators)
        self._workers_per_replica = workers_per_replica
        self._incarnation = incarnation
        self._end = time.monotonic() + deadline_s

    @property
    def members(self) -> tuple[tuple[ActorId, int], ...]:
        return tuple((generator.id, generator.incarnation) for generator in self._generators)

    @property
    def workers(self) -> int:
        return len(self._generators) * self._workers_per_replica

    @property
    def address(self) -> str:
        return ray.util.get_node_ip_address()

    def fence(self) -> None:
        """Make the generators reject earlier incarnations of the learner."""
        calls = [generator.call(GenerationActor.fence, self._incarnation) for generator in self._generators]
        self._wait("fence its learner", calls)

    def run_stage(
        self, stage: TransferStage, info: dict[str, Any] | None = None, on_loss: Callable[[], None] | None = None
    ) -> None:
        """Run one stage of vLLM's weight transfer on all generators. Raises ReceiverLostError if a generator is lost,
        because vLLM's transfer needs all of them; `on_loss` is called first, and ends the transfer for the others."""
        calls = []
        for index, generator in enumerate(self._generators):
            engine_info = info
            if info is not None and "rank_offset" in info:
                # In the process group, the ranks of an engine's workers follow the ranks of the previous engine's.
                workers_before = index * self._workers_per_replica
                engine_info = {**info, "rank_offset": info["rank_offset"] + workers_before}
            calls.append(generator.call(GenerationActor.run_stage, self._incarnation, stage, engine_info))
        succeeded = self._wait(f"run {stage}", calls, on_loss)
        if len(succeeded) < len(calls) or not all(succeeded):
            raise ReceiverLostError(f"lost in {stage}: {self.failed}")

    def update_weights(self, version: WeightVersion, update: WeightUpdate | None) -> list[Acknowledgement]:
        """Send a whole update, or only the version."""
        # Stored once: as an argument, Ray would serialise the update for each call. Generators read it in place.
        stored = None if update is None else ray.put(update)
        calls = []
        for generator in self._generators:
            calls.append(generator.call(GenerationActor.update_weights, self._incarnation, version, stored))
        return self._wait("update weights", calls)

    def sample(self, probe: AgreementProbe) -> list[Group]:
        """Return one completion per generator, without weights for learning."""
        calls = []
        for generator in self._generators:
            calls.append(generator.call(GenerationActor.generate, probe.prompt, probe.sampling))
        generations = self._wait("sample a probe", calls)
        sampled = [sibling_calls(generation.prompt_ids, generation.completions) for generation in generations]
        return [Group(0, calls_of_one, (0.0,), (0.0,)) for calls_of_one in sampled if calls_of_one]

    def _wait(self, purpose: str, calls: Sequence[Call[R]], on_loss: Callable[[], None] | None = None) -> list[R]:
        """Return the results of the remaining generators, and drop lost generators. Call `on_loss` at each error, and
        if a stage did not succeed."""
        # All stages of an update share one deadline; errors state the remaining time.
        remaining_s = round(max(0.0, self._end - time.monotonic()), 1)

        def check(result: R | Exception) -> None:
            if on_loss is not None and (result is False or isinstance(result, Exception)):
                on_loss()

        results = wait_all(calls, Deadline(remaining_s, "sync_s", f"to {purpose}"), check)
        answers = []
        remaining = []
        for generator, result in zip(self._generators, results, strict=True):
            if isinstance(result, ActorDied | DeadlineExceeded):
                self.failed[generator.id] = str(result)
            elif isinstance(result, Exception):
                raise result
            else:
                answers.append(result)
                remaining.append(generator)
        self._generators = remaining
        return answers
