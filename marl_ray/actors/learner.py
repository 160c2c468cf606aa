"""The learner actor: one `Learner`, and what ties it to the policy's generators."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import ray

from marl_ray.actors.handle import Actor, Handle, keep_what_is_loaded
from marl_ray.core.batch import Batch, Group, UpdateStats
from marl_ray.core.ids import ActorId
from marl_ray.learning.arguments import LearnerArguments
from marl_ray.models.adapters import describe_adapter, has_adapter
from marl_ray.models.tokenization import fingerprint
from marl_ray.weights.receiving import Delivery

if TYPE_CHECKING:  # they import torch, which the driver, who imports this module, does without
    from marl_ray.actors.generator import Generator
    from marl_ray.learning.learner import Learner
    from marl_ray.weights.transport import TransportName


class LearnerActor(Actor):
    """Ray actor: one rank of a policy's learner. `arguments` are those of `Learner`. One that `takes_turns` is on its
    device while it computes, and else in the host's memory.

    One thread does everything in the order it was asked for, but for signs of life, which have another.
    """

    concurrency_groups = MappingProxyType({"signs": 1})

    def __init__(self, id: ActorId, arguments: LearnerArguments, takes_turns: bool = False) -> None:
        self.id = id
        self._arguments = arguments
        self._takes_turns = takes_turns

    def start(self, beside: Learner | None = None) -> list[str]:
        """Load the model, or share that of a learner `beside` this one."""
        from marl_ray.learning.learner import Learner
        from marl_ray.learning.parking import Parking

        assert self.id.policy is not None
        self.learner = Learner(*self._arguments, name=self.id.policy.key, beside=beside)
        self.parking = Parking(self.learner) if self._takes_turns else None
        keep_what_is_loaded()
        notes = []
        if has_adapter(self.learner.policy):
            notes.append(f"{self.id.policy}: {describe_adapter(self.learner.policy)}")
        if self.learner.scorer.layout == "packed":
            return notes
        return [
            *notes,
            f"{self.id.policy}: learns in padded batches with the model's own attention, which takes longer: "
            f"{self.learner.why_padded}",
        ]

    def fingerprint(self, texts: list[str]) -> str:
        """See `marl_ray.models.tokenization.fingerprint`."""
        return fingerprint(self.learner.tokenizer, texts)

    def sees(self, path: str) -> bool:
        """Whether this actor's node sees `path` of the driver's file system."""
        return Path(path).exists()

    @ray.method(concurrency_group="signs")
    def alive(self) -> None:  # type: ignore[override]
        """Answers, whatever the learner does."""

    def connect(
        self,
        generators: list[Handle[Generator]],
        life: int,
        ranks_each: int,
        transport: TransportName,
        deadline_s: float,
    ) -> None:
        """Tell the policy's generators that this is its learner's life from now on. A publication has `deadline_s` of
        resources.deadlines.sync_s; each generator has `ranks_each` workers. Raises Outdated."""
        from marl_ray.actors.generator_client import GeneratorClient
        from marl_ray.weights.transport import Publisher

        self._client = partial(GeneratorClient, ranks_each=ranks_each, life=life, deadline_s=deadline_s)
        self._client(generators).meet()
        self.publisher = Publisher(self.learner.policy, self.learner.dtype, transport, self.learner.device)

    def publish(self, generators: list[Handle[Generator]], changed: bool) -> Delivery:
        """Let these generators serve the weights as version `Learner.step`; unless they have `changed`, those that
        were sent last are only given the new version. Raises SyncError, Outdated."""
        send = self.publisher.publish if changed else self.publisher.relabel
        return send(self.learner.step, self._client(generators))

    def accumulate(self, step: int, start: int, groups: Sequence[Group]) -> None:
        """See `Learner.accumulate`."""
        self.learner.accumulate(step, start, groups)

    def finish(self, batch: Batch, accumulated: int) -> UpdateStats:
        """See `Learner.finish`."""
        with self._on_device():
            return self.learner.finish(batch, accumulated)

    def update(self, batch: Batch) -> UpdateStats:
        """See `Learner.update`."""
        with self._on_device():
            return self.learner.update(batch)

    def logprob_gap(self, groups: Sequence[Group]) -> float:
        """See `Learner.logprob_gap`."""
        with self._on_device():
            return self.learner.logprob_gap(groups)

    @ray.method(concurrency_group="signs")
    def memory(self) -> tuple[int, int]:
        """Bytes in use now, and when it last was about to leave its device; see `memory_in_use`. Of one that takes
        turns."""
        from marl_ray.learning.parking import memory_in_use

        return memory_in_use(self.learner.device), self.parking.most if self.parking else 0

    def _on_device(self) -> AbstractContextManager[None]:
        return self.parking.on_device() if self.parking else nullcontext()

    def save(self, folder: str) -> None:
        """See `Learner.save`."""
        self.learner.save(folder)

    def load(self, folder: str, step: int) -> None:
        """See `Learner.load`."""
        self.learner.load(folder, step)

    def export(self, folder: str, texts: list[str]) -> None:
        """See `Learner.export`."""
        self.learner.export(folder, texts)
