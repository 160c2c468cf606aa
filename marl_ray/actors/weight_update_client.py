"""A policy's generators as its learner's process talks to them during a publication: blocking, to all at once."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, TypeVar

import ray

from marl_ray.actors.generation_actor import GenerationActor
from marl_ray.actors.handle import ActorDied, Call, Deadline, Handle, settle
from marl_ray.core.concurrency import DeadlineExceeded
from marl_ray.core.episode import WeightVersion
from marl_ray.core.ids import ActorId
from marl_ray.weights.receiver import Acknowledgement, TransferStage
from marl_ray.weights.sender import ReceiverLostError

R = TypeVar("R")


class WeightUpdateClient:
    """The `WeightReceivers` of `marl_ray.weights.sender`, for one publication of a learner in its incarnation number `incarnation`.

    A generator that dies, or does not answer within `deadline_s` of resources.deadlines.sync_s, counted for the
    publication as a whole, is not called again: it is among `failed`. Whatever else goes wrong is raised.
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
        self._workers_each = workers_per_replica
        self._incarnation = incarnation
        self._deadline_s = deadline_s
        self._until = time.monotonic() + deadline_s

    @property
    def members(self) -> tuple[tuple[ActorId, int], ...]:
        """Those that are left, each with its incarnation."""
        return tuple((generator.id, generator.incarnation) for generator in self._generators)

    @property
    def workers(self) -> int:
        return len(self._generators) * self._workers_each

    @property
    def address(self) -> str:
        return ray.util.get_node_ip_address()

    def meet(self) -> None:
        """Raise the fence: they refuse earlier incarnations."""
        self._settle(
            "meet", [generator.call(GenerationActor.meet, self._incarnation) for generator in self._generators]
        )

    def run_stage(self, stage: TransferStage, info: dict[str, Any] | None = None) -> None:
        """Run one stage of vLLM's weight transfer on all generators.

        The workers of engine i have the ranks after the workers of engines 0 to i - 1. Raises ReceiverLostError if a
        generator is lost, because vLLM's engines count on all of them.
        """
        calls = []
        for index, generator in enumerate(self._generators):
            own = info
            if info is not None and "rank_offset" in info:
                own = info | {"rank_offset": info["rank_offset"] + index * self._workers_each}
            calls.append(generator.call(GenerationActor.run_stage, self._incarnation, stage, own))
        self._settle(stage, calls)
        if len(self._generators) < len(calls):
            raise ReceiverLostError(f"lost in {stage}: {self.failed}")

    def update_weights(self, version: WeightVersion, weights: Any) -> list[Acknowledgement]:
        """A whole update; the weights lie in the object store once, and Ray hands each generator a view of them."""
        stored = ray.put(weights)
        return self._settle(
            "update weights",
            [g.call(GenerationActor.update_weights, self._incarnation, version, stored) for g in self._generators],
        )

    def set_version(self, version: WeightVersion) -> list[Acknowledgement]:
        return self._settle(
            "set the version",
            [g.call(GenerationActor.set_version, self._incarnation, version) for g in self._generators],
        )

    def _settle(self, what: str, calls: Sequence[Call[R]]) -> list[R]:
        """The answers of those that are left."""
        left = round(max(0.0, self._until - time.monotonic()), 1)
        answers = settle(calls, Deadline(left, "sync_s", f"to {what}"))
        good, serving = [], []
        for generator, answer in zip(self._generators, answers, strict=True):
            if isinstance(answer, ActorDied | DeadlineExceeded):
                self.failed[generator.id] = str(answer)
            elif isinstance(answer, Exception):
                raise answer
            else:
                good.append(answer)
                serving.append(generator)
        self._generators = serving
        return good
