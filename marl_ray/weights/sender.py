"""The sending side of weight synchronisation, in a learner.

| transport | used on | sends |
|---|---|---|
| store | CPU | one message through Ray's object store; only changes, if all receivers have the previous weights |
| nccl | several GPUs | all weights, by `NcclSender` |
| ipc | GPUs shared with the learner's ranks | all weights, by `IpcSender` through the `slab` of each rank |
| adapter | engines that have the base model | the adapter, in one message through Ray's object store |
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any, Literal, Protocol

import torch
from transformers.core_model_loading import revert_weight_conversion

from marl_ray.core.episode import WeightVersion
from marl_ray.core.ids import ActorId
from marl_ray.learning.sharding import WeightGatherer
from marl_ray.weights.adapter_source import AdapterSource
from marl_ray.weights.deltas import Checksum, Snapshot, WeightUpdate, complete_delta
from marl_ray.weights.receiver import Acknowledgement, ReceiverLostError, TransferStage, WeightSyncResult
from marl_ray.weights.slab import SlabLayout, SlabWriter

TransportName = Literal["store", "nccl", "ipc", "adapter"]
MESSAGE_BYTES = 2**30
"""Usual size of a message of NCCL and CUDA IPC."""
LAYER = re.compile(r"(.*?\.\d+\.)?")
"""The part of a weight's name that names its layer, and with it all experts of the layer."""


class WeightSyncError(RuntimeError):
    """A generator did not acknowledge the learner's weights."""


class WeightReceivers(Protocol):
    """The generators of one policy during one update. Each call goes to all remaining generators and returns when each
    has answered or is lost."""

    @property
    def failed(self) -> Mapping[ActorId, str]:
        """Lost generators and the reason."""

    @property
    def members(self) -> tuple[Any, ...]:
        """Remaining generators, each with its incarnation."""

    @property
    def workers(self) -> int:
        """Total number of engine workers."""

    @property
    def address(self) -> str:
        """Address of this node, as reachable from the generators."""

    def run_stage(
        self, stage: TransferStage, info: dict[str, Any] | None = None, on_loss: Callable[[], None] | None = None
    ) -> None:
        """Run one stage of vLLM's weight transfer. Calls `on_loss` as soon as a generator is lost, while others may
        still wait for it. Raises ReceiverLostError."""

    def update_weights(self, version: WeightVersion, update: WeightUpdate | None) -> list[Acknowledgement]:
        """Load a complete update, unless it is None, and label the weights received last as `version`."""


class WeightSender:
    """Sends a policy's weights to its generators, which acknowledge version and checksum unless they are lost.

    sparse: send only changes where they are smaller, which costs a copy of the weights here and in each engine worker;
    None: only for 16-bit dtypes, because an optimizer step changes nearly all values of wider ones.
    slab: this rank's slab, for the transport ipc.
    """

    def __init__(
        self,
        source: CastSource | AdapterSource,
        transport: TransportName,
        sparse: bool | None = None,
        slab: SlabWriter | None = None,
    ) -> None:
        self.source: Any = source  # the staged transports have a CastSource
        self._slab = slab
        self._summed = SummedSource(self.source)
        self.transport = transport
        if sparse is None:
            sparse = source.dtype.itemsize == 2
        self.sparse = sparse and transport == "store"
        self.checksum: int | None = None
        """Checksum of the weights sent last; None before that."""
        self._session: _TransferSession | None = None
        self._snapshot = Snapshot()
        self._acknowledged: dict[Any, int] = {}
        """Checksum that each generator acknowledged last, by name and incarnation."""

    def update_weights(
        self, version: WeightVersion, receivers: WeightReceivers, changed: bool = True
    ) -> WeightSyncResult:
        """Send the weights as `version`, or only the version if the weights have not `changed` since they were sent.
        Raises WeightSyncError."""
        checksum = Checksum()
        sent_bytes = 0
        changed_share = None
        if not changed and self.checksum is not None:
            checksum = Checksum(self.checksum)
            acknowledgements = receivers.update_weights(version, None)
        elif self.transport in ("store", "adapter"):
            update = self._make_update(checksum, receivers)
            sent_bytes = update.nbytes
            if update.base is not None:
                changed_share = self._snapshot.changed
            acknowledgements = receivers.update_weights(version, update)
        else:
            wait_for_device(self.source.device)  # vLLM casts and sends on streams of its own
            self._send_in_stages(receivers)
            sender = self._summed if self._slab is None else self._slab
            checksum = sender.checksum
            sent_bytes = sum(shape.nbytes for shape in self.source.shapes.values())
            acknowledgements = receivers.update_weights(version, None)
        self.checksum = checksum.value
        for got in acknowledgements:
            if (got.version, got.checksum) != (version, self.checksum):
                raise WeightSyncError(
                    f"{got.generator} acknowledged version {got.version} with checksum {got.checksum}, "
                    f"the learner sent version {version} with {self.checksum}"
                )
        self._acknowledged |= dict.fromkeys(receivers.members, self.checksum)
        return WeightSyncResult(version, self.checksum, dict(receivers.failed), sent_bytes, changed_share)

    def _make_update(self, checksum: Checksum, receivers: WeightReceivers) -> WeightUpdate:
        """Return the changes if all receivers have the snapshot, otherwise all weights."""
        base = self._snapshot.checksum
        weights = checksum.watch(self.source)
        if not self.sparse:
            deltas = [complete_delta(name, tensor) for name, tensor in weights]
            return WeightUpdate(deltas, adapter_scale=self.source.adapter_scale)
        acknowledged = {self._acknowledged.get(member) for member in receivers.members}
        if base is not None and acknowledged <= {base}:
            update = WeightUpdate(list(self._snapshot.diff(weights)), base, keep=True)
        else:
            deltas = [complete_delta(name, tensor) for name, tensor in self._snapshot.reset(weights)]
            update = WeightUpdate(deltas, keep=True)
        # Complete only now: the deltas above have read all weights.
        self._snapshot.checksum = checksum.value
        return update

    def _send_in_stages(self, receivers: WeightReceivers) -> None:
        """Send to all remaining receivers; if one is lost, start again without it."""
        while receivers.members:
            try:
                session = self._session
                if session is None or session.members != receivers.members:
                    session = self._open_session(receivers)
                session.receivers = receivers
                session.engine.send_weights()
                return
            except ReceiverLostError:
                self._close_session()

    def _open_session(self, receivers: WeightReceivers) -> _TransferSession:
        self._close_session()
        receivers.run_stage("shutdown_weight_transfer_engine")
        session = _TransferSession(receivers)
        session.engine = self._make_trainer_engine(session)
        self._session = session
        return session

    def _close_session(self) -> None:
        session = self._session
        self._session = None
        if session is not None:
            session.engine.shutdown()

    def _make_trainer_engine(self, session: Any) -> Any:
        if self._slab is not None:
            from marl_ray.weights.ipc_transfer import IpcSender

            return IpcSender(session, self._slab, self.source.weights)
        from marl_ray.weights.nccl_transfer import NcclSender

        source: Any = self._summed  # has the two methods of vLLM's WeightSource that its engine uses
        receivers = session.receivers
        return NcclSender(session, source, receivers.address, receivers.workers, self.source.buffer_bytes)


class _TransferSession:
    """A rendezvous of vLLM's trainer-side `engine` with the engines of `members`, and the `VLLMWeightSyncClient` that
    forwards the calls of the engine to the receivers of the current update."""

    def __init__(self, receivers: WeightReceivers) -> None:
        self.receivers = receivers
        self.members = receivers.members
        self.engine: Any = None
        self.on_loss: Callable[[], None] | None = None

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self.receivers.run_stage("init_weight_transfer_engine", init_info, self.on_loss)

    def start_weight_update(self) -> None:
        self.receivers.run_stage("start_weight_update")

    def update_weights(self, update_info: dict[str, Any]) -> None:
        self.receivers.run_stage("update_weights", update_info, self.on_loss)

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self.receivers.run_stage("finish_weight_update")


class SummedSource:
    """A source that adds up the checksum while its weights are sent; each iteration starts anew."""

    def __init__(self, source: Any) -> None:
        self.checksum = Checksum()
        self._source = source

    def metadata(self) -> list[Any]:
        return self._source.metadata()

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        self.checksum = Checksum(deferred=True)
        yield from self.checksum.watch(self._source)


def wait_for_device(device: torch.device | None) -> None:
    """Wait for all work on a GPU, such as the last optimizer step."""
    if device is not None and device.type == "cuda":
        torch.cuda.synchronize(device)


class CastSource:
    """The weights, cast to the wire dtype, in a fixed order (vLLM's `WeightSource`).

    Names are the names in the model's files, which engines load; transformers may rename weights (gpt_neox) or stack
    them (experts). `weights` gathers a sharded model; None: the model is not sharded. device: device to send from;
    None: the weights' own.
    """

    adapter_scale = None
    """The tensors are the model's weights."""

    def __init__(
        self, model: Any, dtype: torch.dtype, weights: WeightGatherer | None = None, device: torch.device | None = None
    ) -> None:
        self.model = model
        self.dtype = dtype
        self.device = device
        self.weights = weights or WeightGatherer(model, dtype=dtype, device=device)
        shapes = {name: weight.to(dtype) for name, weight in self.weights.shapes().items()}
        # The conversion of all weights at once is right, and the one that `_rename` makes layer by layer must equal it.
        in_files = revert_weight_conversion(model, shapes)
        self.same_names = in_files.keys() == shapes.keys()
        self.shapes = dict(self._rename(shapes.items()))
        if _sizes(self.shapes) != _sizes(in_files):
            raise NotImplementedError(f"the files of {type(model).__name__} combine weights of several layers")

    @property
    def buffer_bytes(self) -> int:
        """Size of a message, which holds at least the largest weight, and not more than all weights."""
        sizes = [shape.nbytes for shape in self.shapes.values()]
        return max(min(MESSAGE_BYTES, sum(sizes)), *sizes)

    def slab_writer(self) -> SlabWriter:
        """Return the slab of this rank, on `device`; see `SlabWriter`."""
        assert self.device is not None
        layout = SlabLayout.of(self.shapes, self.buffer_bytes)
        return SlabWriter(self, layout, self.device, self.weights.ranks.all_gather, self.weights.wait_for_ranks)

    def metadata(self) -> list[Any]:
        from vllm.distributed.weight_transfer.base import ParamMeta

        return [ParamMeta(name, self.dtype, tuple(shape.shape)) for name, shape in self.shapes.items()]

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in self._rename(self._cast()):
            yield name, tensor.contiguous()

    def _cast(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, weight in self.weights:
            if self.device is not None:
                weight = weight.to(self.device)
            yield name, weight.to(self.dtype)

    def _rename(self, weights: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield weights under their names in files. Layers are converted one at a time, because a conversion needs the
        memory of all its weights twice."""
        if self.same_names:
            yield from weights
            return
        for _, layer in groupby(weights, key=lambda weight: LAYER.match(weight[0])[1]):  # type: ignore[index]
            yield from revert_weight_conversion(self.model, dict(layer)).items()


def _sizes(weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Size]:
    return {name: weight.shape for name, weight in weights.items()}
