"""The learner's client for weight updates: blocking calls to all generators of the policy at once."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, TypeVar

import ray

from marl_ray.actors.generation_actor import GenerationActor
from marl_ray.actors.handle import ActorDied, Call, Deadline, Handle, wait_all
from marl_ray.core.concurrency import DeadlineExceeded
from marl_ray.core.episode import WeightVersion
from marl_ray.core.ids import ActorId
from marl_ray.weights.receiver import Acknowledgement, TransferStage
from marl_ray.weights.sender import ReceiverLostError

R = TypeVar("R")


class WeightUpdateClient:
    """The `WeightReceivers` of one weight update from incarnation `incarnation` of a learner.

    The deadline (`resources.deadlines.sync_s`) applies to the update as a whole. A generator that dies or misses it is
    added to `failed` and not called again; all other errors are raised.
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
        """Id and incarnation of each remaining generator."""
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

    def run_stage(self, stage: TransferStage, info: dict[str, Any] | None = None) -> None:
        """Run one stage of vLLM's weight transfer on all generators.

        The ranks of an engine's workers follow the previous engine's ranks. Raises ReceiverLostError if a generator is
        lost, because vLLM's transfer needs all of them.
        """
        calls = []
        for index, generator in enumerate(self._generators):
            own = info
            if info is not None and "rank_offset" in info:
                own = info | {"rank_offset": info["rank_offset"] + index * self._workers_per_replica}
            calls.append(generator.call(GenerationActor.run_stage, self._incarnation, stage, own))
        self._wait(f"run {stage}", calls)
        if len(self._generators) < len(calls):
            raise ReceiverLostError(f"lost in {stage}: {self.failed}")

    def update_weights(self, version: WeightVersion, weights: Any) -> list[Acknowledgement]:
        """Send a whole update. The weights are stored once in Ray's object store, and generators read them in place."""
        stored, incarnation = ray.put(weights), self._incarnation
        calls = [g.call(GenerationActor.update_weights, incarnation, version, stored) for g in self._generators]
        return self._wait("update weights", calls)

    def set_version(self, version: WeightVersion) -> list[Acknowledgement]:
        calls = [g.call(GenerationActor.set_version, self._incarnation, version) for g in self._generators]
        return self._wait("set the weight version", calls)

    def _wait(self, purpose: str, calls: Sequence[Call[R]]) -> list[R]:
        """Return the results of the remaining generators, and drop lost generators."""
        remaining_s = round(max(0.0, self._end - time.monotonic()), 1)
        results = wait_all(calls, Deadline(remaining_s, "sync_s", f"to {purpose}"))
        good, serving = [], []
        for generator, result in zip(self._generators, results, strict=True):
            if isinstance(result, ActorDied | DeadlineExceeded):
                self.failed[generator.id] = str(result)
            elif isinstance(result, Exception):
                raise result
            else:
                good.append(result)
                serving.append(generator)
        self._generators = serving
        return good
