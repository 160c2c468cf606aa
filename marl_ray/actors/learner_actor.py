"""The learner actor: one rank of a policy's `Learner`, and its client for updating the weights of generators."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial, wraps
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import ray

from marl_ray.actors.generation_actor import GenerationActor
from marl_ray.actors.handle import Actor, ActorBroken, ActorDied, Call, Deadline, Handle, wait_all, without_gc
from marl_ray.cluster.placement_group import BundleGpus
from marl_ray.config.resource_sections import Residency, takes_turns
from marl_ray.core.batch import Batch, Group, UpdateStats
from marl_ray.core.concurrency import DeadlineExceeded
from marl_ray.core.episode import SamplingSpec, WeightVersion, sibling_calls
from marl_ray.core.errors import UserError
from marl_ray.core.files import DISK_ERRORS
from marl_ray.core.ids import ActorId
from marl_ray.learning.arguments import LearnerArguments
from marl_ray.models.lora import describe_adapter, has_adapter, named_adapter
from marl_ray.models.tokenization import fingerprint
from marl_ray.weights.receiver import Acknowledgement, ReceiverLostError, TransferStage, WeightSyncResult

if TYPE_CHECKING:  # these import torch, which a driver need not load to start
    from marl_ray.learning.learner import Learner
    from marl_ray.learning.ranks import RankGroup, Rendezvous
    from marl_ray.learning.snapshot import StateSnapshot
    from marl_ray.weights.deltas import WeightUpdate
    from marl_ray.weights.sender import TransportName

P = ParamSpec("P")
R = TypeVar("R")
Self = TypeVar("Self")


@dataclass(frozen=True, slots=True)
class AgreementProbe:
    """A prompt to compare a new generator with its learner, and the maximum difference in nats per token."""

    prompt: str
    sampling: SamplingSpec
    bound: float


def collective_call(method: Callable[Concatenate[Self, P], R]) -> Callable[Concatenate[Self, P], R]:
    """Decorate a method that all ranks execute together. Raises ActorBroken if another rank is lost or late, because
    this rank is then unusable too."""

    @wraps(method)
    def call(self: Self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return method(self, *args, **kwargs)
        except BaseException as error:  # PyTorch's error of distributed checkpoints is no Exception
            from marl_ray.learning.ranks import is_peer_failure

            if not is_peer_failure(error):
                raise
            raise ActorBroken(f"it lost another rank ({next(iter(str(error).splitlines()), '')[:200]})") from None

    return call


def in_checkpoint_thread(method: Callable[P, R]) -> Callable[P, R]:
    """Let a thread of its own execute a method. Ray's decorator changes the type of the method."""
    decorate: Any = ray.method(concurrency_group="checkpoint")
    decorated: Callable[P, R] = decorate(method)
    return decorated


class LearnerActor(Actor):
    """Ray actor: one rank of a policy's learner. `arguments` are the arguments of `Learner`, whose methods have the
    same names here. `residency`: what stays on a device that the learner shares with engines; None: everything. `gpus`
    are the GPUs to use; None: Ray assigns them.

    One thread executes all calls in order, except for heartbeats and `finish_save`, so ranks that receive the same
    calls in the same order execute them together.
    """

    concurrency_groups = MappingProxyType({"heartbeat": 1, "checkpoint": 1})

    def __init__(
        self,
        id: ActorId,
        arguments: LearnerArguments,
        residency: Residency | None = None,
        gpus: BundleGpus | None = None,
    ) -> None:
        self.id, self._arguments, self._residency, self._gpus = id, arguments, residency, gpus
        self._unwritten: StateSnapshot | None = None

    def start(self, base: Learner | None = None) -> list[str]:
        """Load the model, or share the base model of another learner. One of several ranks loads its model in
        `join_rendezvous` instead."""
        if self._gpus is not None:
            self._gpus.make_visible()
        with without_gc():
            from marl_ray.learning.device import choose_device
            from marl_ray.learning.ranks import SINGLE_RANK

        choose_device(self._arguments.on_gpu)  # fails before the other ranks wait
        return [] if self._arguments.agent.learner.ranks > 1 else self._load(SINGLE_RANK, base)

    def open_rendezvous(self, one_machine: bool, timeout_s: float) -> Rendezvous:
        """Return the rendezvous of this incarnation's ranks, which listens on rank 0's localhost for `one_machine`,
        else on the address of its node. `timeout_s` limits every wait for another rank."""
        from marl_ray.learning.ranks import LOOPBACK, open_rendezvous

        host = LOOPBACK if one_machine else ray.util.get_node_ip_address()
        self._store, rendezvous = open_rendezvous(host, self._arguments.agent.learner.ranks, timeout_s)
        return rendezvous

    @collective_call
    def join_rendezvous(self, rendezvous: Rendezvous) -> list[str]:
        """Join the other ranks and load this rank's part of the model. Rank 0 returns the notes for all."""
        from marl_ray.learning.ranks import join_rendezvous

        store, address = self._store if self.id.replica == 0 else None, ray.util.get_node_ip_address()
        return self._load(join_rendezvous(rendezvous, self.id.replica, address, store, self._arguments.on_gpu))

    def _load(self, ranks: RankGroup, base: Learner | None = None) -> list[str]:
        assert self.id.policy is not None
        with without_gc():
            from marl_ray.learning.cpu_offload import CpuOffload
            from marl_ray.learning.learner import Learner
            from marl_ray.learning.sharding import WeightGatherer

            self.learner = Learner(*self._arguments, name=self.id.policy.key, beside=base, ranks=ranks)
            self._weights = WeightGatherer(self.learner.policy, ranks, self.learner.dtype, self.learner.device)
            if self._residency == "stream" and not self._arguments.agent.learner.cpu_offload:
                self.learner.stream_optimizer_state()
            self.cpu_offload = None
            if takes_turns(self._residency):
                self.cpu_offload = CpuOffload(self.learner, keeps_state=self._residency != "turns")
        notes = []
        if has_adapter(self.learner.policy):
            notes.append(f"{self.id.policy}: {describe_adapter(self.learner.policy)}")
        if self.learner.logprob_model.layout == "padded":
            how = "learns in padded batches with the model's own attention, which takes longer"
            notes.append(f"{self.id.policy}: {how}: {self.learner.padding_reason}")
        return notes

    def fingerprint(self, texts: list[str]) -> str:
        return fingerprint(self.learner.tokenizer, texts)

    def sees_path(self, path: str) -> bool:
        return Path(path).exists()

    @ray.method(concurrency_group="heartbeat")
    def heartbeat(self) -> None:  # type: ignore[override]
        """Return at once."""

    @collective_call
    def connect(
        self,
        generators: list[Handle[GenerationActor]],
        incarnation: int,
        workers_per_replica: int,
        transport: TransportName,
        deadline_s: float,
    ) -> None:
        """Make the policy's generators accept weight updates from this incarnation only. `deadline_s` limits each later
        weight update (`resources.deadlines.sync_s`). Raises an error if a generator knows a later incarnation."""
        from marl_ray.learning.sharding import WeightGatherer
        from marl_ray.weights.adapter_source import AdapterSource
        from marl_ray.weights.sender import CastSource, WeightSender

        self._make_client = partial(
            WeightUpdateClient, workers_per_replica=workers_per_replica, incarnation=incarnation, deadline_s=deadline_s
        )

        policy, dtype, device = self.learner.policy, self.learner.dtype, self.learner.device
        source: CastSource | AdapterSource
        slab = None
        if transport == "adapter":
            self._weights = WeightGatherer(policy, self.learner.ranks, dtype, device, named_adapter)
            source = AdapterSource(policy, dtype, self._weights)
        else:
            source = CastSource(policy, dtype, self._weights, device)
            if transport == "ipc":
                slab = source.slab_writer()
                self._weights.accompany = slab.send

        def connect() -> WeightSender:
            self._make_client(generators).fence()
            return WeightSender(source, transport, self._arguments.agent.learner.sparse_push, slab)

        self._sender = self._weights.run_on_rank_zero(connect)

    @collective_call
    def update_weights(
        self, generators: list[Handle[GenerationActor]], changed: bool, probe: AgreementProbe | None = None
    ) -> WeightSyncResult | None:
        """Let these generators serve the weights as version `Learner.step`, and return the result on rank 0. Send
        unchanged weights only if this incarnation has not sent any. With `probe`, let the generators sample, and
        compare log-probabilities. Raises WeightSyncError and StaleSenderError."""
        sampled: list[Group] = []

        def send() -> WeightSyncResult:
            assert self._sender is not None, "rank 0 has connected"
            client, step = self._make_client(generators), self.learner.step
            result = self._sender.update_weights(step, client, changed)
            if probe is None:
                return result
            sampled.extend(client.sample(probe))
            # The same version again, so that no later request reuses cached keys and values of the probe.
            return self._sender.update_weights(step, client, False)

        result = self._weights.run_on_rank_zero(send)
        if probe is None or not (groups := self.learner.ranks.broadcast(sampled)):
            return result
        gap = self.learner.logprob_gap(groups)
        return result and replace(result, logprob_gap=gap)

    @collective_call
    def accumulate(self, step: int, start: int, groups: Sequence[Group]) -> None:
        self.learner.accumulate(step, start, groups)

    @collective_call
    def finish(self, batch: Batch, accumulated: int) -> UpdateStats:
        with self._on_device():
            return self.learner.finish(batch, accumulated)

    @collective_call
    def update(self, batch: Batch) -> UpdateStats:
        with self._on_device():
            return self.learner.update(batch)

    @collective_call
    def logprob_gap(self, groups: Sequence[Group]) -> float:
        with self._on_device():
            return self.learner.logprob_gap(groups)

    @ray.method(concurrency_group="heartbeat")
    def memory(self) -> tuple[int, int]:
        """Return the bytes in use now, and at the peak before the last offload of a colocated learner."""
        from marl_ray.learning.cpu_offload import memory_in_use

        return memory_in_use(self.learner.device), self.cpu_offload.peak_bytes if self.cpu_offload else 0

    def release_memory(self) -> None:
        """Return unused memory of the allocator to the device, which an engine needs to start."""
        from marl_ray.learning.cpu_offload import release_cached_memory

        release_cached_memory(self.learner.device)

    def _on_device(self) -> AbstractContextManager[None]:
        return self.cpu_offload.on_device() if self.cpu_offload else nullcontext()

    @collective_call
    def begin_save(self, folder: str) -> None:
        """Copy the state to host memory, to be written to `folder` by `finish_save` while training continues. Without
        a copy of the state (see `_copies_to_save`) it is written at once."""
        from marl_ray.learning.snapshot import take_snapshot

        self._unwritten = take_snapshot(self.learner, folder)
        if self._copies_to_save:
            self._unwritten.copy()
        else:
            self.finish_save()

    @collective_call
    @in_checkpoint_thread  # on the function itself: Ray ignores its wrappers
    def finish_save(self) -> None:
        """Write the state that `begin_save` has copied, unless it is written. Raises UserError if it cannot be."""
        if self._unwritten is None:
            return
        try:
            self._unwritten.write()
        except OSError as error:
            if error.errno in DISK_ERRORS:
                raise  # the driver names the run folder and its remedy
            reason, remedy = error.strerror or str(error), "make its disk available, then --resume the run"
            raise UserError(f"{self._unwritten.folder} cannot be written ({reason}): {remedy}") from None
        self._unwritten = None

    @property
    def _copies_to_save(self) -> bool:
        """Whether checkpoints are written while training continues.

        On a CPU they are not: the copy would take three quarters of the learner's memory once more, on machines that
        have little, and steps take much longer than the write.
        """
        return self.learner.device.type == "cuda"

    @collective_call
    def load(self, folder: str, step: int) -> None:
        with self._on_device():  # `load_state_dict` puts the optimizer's state on the parameters' device
            self.learner.load(folder, step)

    @collective_call
    def export(self, folder: str, texts: list[str]) -> None:
        self.learner.export(folder, texts)


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
        self._wait("fence its learner", [g.call(GenerationActor.fence, self._incarnation) for g in self._generators])

    def run_stage(
        self, stage: TransferStage, info: dict[str, Any] | None = None, on_loss: Callable[[], None] | None = None
    ) -> None:
        """Run one stage of vLLM's weight transfer on all generators. Raises ReceiverLostError if a generator is lost,
        because vLLM's transfer needs all of them; `on_loss` is called first, and ends the transfer for the others."""
        calls = []
        for index, generator in enumerate(self._generators):
            own = info
            if info is not None and "rank_offset" in info:  # ranks of an engine's workers follow the previous engine's
                own = info | {"rank_offset": info["rank_offset"] + index * self._workers_per_replica}
            calls.append(generator.call(GenerationActor.run_stage, self._incarnation, stage, own))
        succeeded = self._wait(f"run {stage}", calls, on_loss)
        if len(succeeded) < len(calls) or not all(succeeded):
            raise ReceiverLostError(f"lost in {stage}: {self.failed}")

    def update_weights(self, version: WeightVersion, update: WeightUpdate | None) -> list[Acknowledgement]:
        """Send a whole update, which is stored once in Ray's object store and read in place, or only the version."""
        stored, incarnation = None if update is None else ray.put(update), self._incarnation
        calls = [g.call(GenerationActor.update_weights, incarnation, version, stored) for g in self._generators]
        return self._wait("update weights", calls)

    def sample(self, probe: AgreementProbe) -> list[Group]:
        """Return one completion per generator, without weights for learning."""
        calls = [g.call(GenerationActor.generate, probe.prompt, probe.sampling) for g in self._generators]
        generations = self._wait("sample a probe", calls)
        sampled = [sibling_calls(generation.prompt_ids, generation.completions) for generation in generations]
        return [Group(0, calls_of_one, (0.0,), (0.0,)) for calls_of_one in sampled if calls_of_one]

    def _wait(self, purpose: str, calls: Sequence[Call[R]], on_loss: Callable[[], None] | None = None) -> list[R]:
        """Return the results of the remaining generators, and drop lost generators. Call `on_loss` at the first error,
        and if a stage did not succeed."""
        remaining_s = round(max(0.0, self._end - time.monotonic()), 1)

        def check(result: R | Exception) -> None:
            if on_loss is not None and (result is False or isinstance(result, Exception)):
                on_loss()

        results = wait_all(calls, Deadline(remaining_s, "sync_s", f"to {purpose}"), check)
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
