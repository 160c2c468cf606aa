"""The learner actor: one `Learner`, and what ties it to the policy's generators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial, wraps
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

import ray

from marl_ray.actors.handle import Actor, ActorBroken, Handle, loading
from marl_ray.core.batch import Batch, Group, UpdateStats
from marl_ray.core.ids import ActorId
from marl_ray.learning.arguments import LearnerArguments
from marl_ray.models.lora import describe_adapter, has_adapter
from marl_ray.models.tokenization import fingerprint
from marl_ray.weights.receiver import WeightSyncResult

if TYPE_CHECKING:  # they import torch, which the driver, who imports this module, does without
    from marl_ray.actors.generation_actor import GenerationActor
    from marl_ray.learning.learner import Learner
    from marl_ray.learning.ranks import RankGroup, Rendezvous
    from marl_ray.weights.sender import TransportName


P = ParamSpec("P")
R = TypeVar("R")
Self = TypeVar("Self")


def collective_call(method: Callable[Concatenate[Self, P], R]) -> Callable[Concatenate[Self, P], R]:
    """What all ranks do together. Where another is gone or late, this one is of no use either: raises ActorBroken."""

    @wraps(method)
    def call(self: Self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return method(self, *args, **kwargs)
        except BaseException as error:  # PyTorch's error of a checkpoint is no Exception
            from marl_ray.learning.ranks import is_peer_failure

            if not is_peer_failure(error):
                raise
            raise ActorBroken(f"it lost another rank ({next(iter(str(error).splitlines()), '')[:200]})") from None

    return call


class LearnerActor(Actor):
    """Ray actor: one rank of a policy's learner. `arguments` are those of `Learner`. One that `colocated` is on its
    device while it computes, and else in the host's memory.

    One thread does everything in the order it was asked for, but for signs of life, which have another. So ranks that
    are asked the same in one order do it together.
    """

    concurrency_groups = MappingProxyType({"signs": 1})

    def __init__(self, id: ActorId, arguments: LearnerArguments, colocated: bool = False) -> None:
        self.id = id
        self._arguments = arguments
        self._takes_turns = colocated

    def start(self, beside: Learner | None = None) -> list[str]:
        """Load the model, or share that of a learner `beside` this one; of several ranks, leave that to `join`."""
        if self._arguments.agent.learner.ranks > 1:
            return []
        with loading():
            from marl_ray.learning.ranks import SINGLE_RANK

        return self._load(SINGLE_RANK, beside)

    def open_rendezvous(self, one_machine: bool, timeout_s: float) -> Rendezvous:
        """Where the ranks of this incarnation are to meet, which rank 0 is asked: on this machine, or on its network. None
        waits longer than `timeout_s` for another."""
        from marl_ray.learning.ranks import LOOPBACK, open_rendezvous

        host = LOOPBACK if one_machine else ray.util.get_node_ip_address()
        self._store, meeting = open_rendezvous(host, self._arguments.agent.learner.ranks, timeout_s)
        return meeting

    @collective_call
    def join(self, meeting: Rendezvous) -> list[str]:
        """Meet the other ranks, and load the model's part; returns what people should know, rank 0 for all."""
        from marl_ray.learning.ranks import join_rendezvous

        store = self._store if self.id.replica == 0 else None
        return self._load(join_rendezvous(meeting, self.id.replica, ray.util.get_node_ip_address(), store))

    def _load(self, ranks: RankGroup, beside: Learner | None = None) -> list[str]:
        assert self.id.policy is not None
        with loading():
            from marl_ray.learning.cpu_offload import CpuOffload
            from marl_ray.learning.learner import Learner
            from marl_ray.learning.sharding import WeightGatherer

            self.learner = Learner(*self._arguments, name=self.id.policy.key, beside=beside, ranks=ranks)
            self._weights = WeightGatherer(self.learner.policy, ranks)
            self.parking = CpuOffload(self.learner) if self._takes_turns else None
        notes = []
        if has_adapter(self.learner.policy):
            notes.append(f"{self.id.policy}: {describe_adapter(self.learner.policy)}")
        if self.learner.logprob_model.layout == "padded":
            notes.append(
                f"{self.id.policy}: learns in padded batches with the model's own attention, which takes longer: "
                f"{self.learner.padding_reason}"
            )
        return notes

    def fingerprint(self, texts: list[str]) -> str:
        """See `marl_ray.models.tokenization.fingerprint`."""
        return fingerprint(self.learner.tokenizer, texts)

    def sees_path(self, path: str) -> bool:
        """Whether this actor's node sees `path` of the driver's file system."""
        return Path(path).exists()

    @ray.method(concurrency_group="signs")
    def alive(self) -> None:  # type: ignore[override]
        """Answers, whatever the learner does."""

    @collective_call
    def connect(
        self,
        generators: list[Handle[GenerationActor]],
        incarnation: int,
        workers_per_replica: int,
        transport: TransportName,
        deadline_s: float,
    ) -> None:
        """Tell the policy's generators that this is its learner's incarnation from now on. A publication has `deadline_s` of
        resources.deadlines.sync_s; each generator has `workers_per_replica` workers. Raises StaleSenderError."""
        from marl_ray.actors.weight_update_client import WeightUpdateClient
        from marl_ray.weights.sender import WeightSender

        self._client = partial(
            WeightUpdateClient, workers_per_replica=workers_per_replica, incarnation=incarnation, deadline_s=deadline_s
        )

        def meet() -> WeightSender:
            self._client(generators).meet()
            policy, sparse = self.learner.policy, self._arguments.agent.learner.sparse_push
            return WeightSender(policy, self.learner.dtype, transport, self._weights, sparse, self.learner.device)

        self._publisher = self._weights.run_on_rank_zero(meet)

    @collective_call
    def update_weights(self, generators: list[Handle[GenerationActor]], changed: bool) -> WeightSyncResult | None:
        """Let these generators serve the weights as version `Learner.step`; unless they have `changed`, those that
        were sent last are only given the new version. Rank 0 sends them, and says what came of it. Raises WeightSyncError,
        StaleSenderError."""

        def send() -> WeightSyncResult:
            assert self._publisher is not None, "rank 0 has connected"
            publish = self._publisher.update_weights if changed else self._publisher.set_version
            return publish(self.learner.step, self._client(generators))

        return self._weights.run_on_rank_zero(send)

    @collective_call
    def accumulate(self, step: int, start: int, groups: Sequence[Group]) -> None:
        """See `Learner.accumulate`."""
        self.learner.accumulate(step, start, groups)

    @collective_call
    def finish(self, batch: Batch, accumulated: int) -> UpdateStats:
        """See `Learner.finish`."""
        with self._on_device():
            return self.learner.finish(batch, accumulated)

    @collective_call
    def update(self, batch: Batch) -> UpdateStats:
        """See `Learner.update`."""
        with self._on_device():
            return self.learner.update(batch)

    @collective_call
    def logprob_gap(self, groups: Sequence[Group]) -> float:
        """See `Learner.logprob_gap`."""
        with self._on_device():
            return self.learner.logprob_gap(groups)

    @ray.method(concurrency_group="signs")
    def memory(self) -> tuple[int, int]:
        """Bytes in use now, and when it last was about to leave its device; see `memory_in_use`. Of one that takes
        turns."""
        from marl_ray.learning.cpu_offload import memory_in_use

        return memory_in_use(self.learner.device), self.parking.peak_bytes if self.parking else 0

    def _on_device(self) -> AbstractContextManager[None]:
        return self.parking.on_device() if self.parking else nullcontext()

    @collective_call
    def save(self, folder: str) -> None:
        """See `Learner.save`."""
        self.learner.save(folder)

    @collective_call
    def load(self, folder: str, step: int) -> None:
        """See `Learner.load`."""
        self.learner.load(folder, step)

    @collective_call
    def export(self, folder: str, texts: list[str]) -> None:
        """See `Learner.export`."""
        self.learner.export(folder, texts)
