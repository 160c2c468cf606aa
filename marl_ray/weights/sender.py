"""The sending side of weight synchronisation, in a learner.

| transport | used on | sends |
|---|---|---|
| store | CPU | one message through Ray's object store; only changes, if all receivers have the previous weights |
| nccl | several GPUs | all weights, by vLLM's trainer-side engine |
| ipc | one shared GPU | all weights, by vLLM's trainer-side engine |
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, Protocol

import torch
from transformers.core_model_loading import revert_weight_conversion

from marl_ray.core.episode import WeightVersion
from marl_ray.core.ids import ActorId
from marl_ray.learning.sharding import WeightGatherer
from marl_ray.weights.deltas import Checksum, Snapshot, WeightUpdate, complete_delta
from marl_ray.weights.receiver import Acknowledgement, ReceiverLostError, TransferStage, WeightSyncResult

TransportName = Literal["store", "nccl", "ipc"]


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

    def run_stage(self, stage: TransferStage, info: dict[str, Any] | None = None) -> None:
        """Run one stage of vLLM's weight transfer. Raises ReceiverLostError."""

    def update_weights(self, version: WeightVersion, update: WeightUpdate | None) -> list[Acknowledgement]:
        """Load a complete update, unless it is None, and label the weights received last as `version`."""


class WeightSender:
    """Sends a policy's weights to its generators, which acknowledge version and checksum unless they are lost.

    wire_dtype: dtype of the engines' weights. sparse: send only changes where they are smaller, which costs a copy of
    the weights here and in each engine worker; None: only for 16-bit dtypes, because an optimizer step changes nearly
    all values of wider ones. device: device to send from; None: the weights' own.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        wire_dtype: torch.dtype,
        transport: TransportName,
        weights: WeightGatherer | None = None,
        sparse: bool | None = None,
        device: torch.device | None = None,
    ) -> None:
        self.source = CastSource(model, wire_dtype, weights, device)
        self.transport = transport
        self.sparse = transport == "store" and (wire_dtype.itemsize == 2 if sparse is None else sparse)
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
        checksum, sent_bytes, changed_share = Checksum(), 0, None
        if not changed and self.checksum is not None:
            checksum.value = self.checksum
            acknowledgements = receivers.update_weights(version, None)
        elif self.transport == "store":
            update = self._make_update(checksum, receivers)
            sent_bytes, changed_share = update.nbytes, None if update.base is None else self._snapshot.changed
            acknowledgements = receivers.update_weights(version, update)
        else:
            for _, tensor in checksum.watch(self.source):
                sent_bytes += tensor.nbytes
            self._send_in_stages(receivers)
            if self.transport == "ipc":  # an engine on this device may need the memory of the sent tensors
                torch.cuda.ipc_collect()
                torch.cuda.empty_cache()
            acknowledgements = receivers.update_weights(version, None)
        self.checksum = checksum.value
        for got in acknowledgements:
            if (got.version, got.checksum) != (version, self.checksum):
                expected = f"the learner sent version {version} with {self.checksum}"
                received = f"acknowledged version {got.version} with checksum {got.checksum}"
                raise WeightSyncError(f"{got.generator} {received}, {expected}")
        self._acknowledged |= dict.fromkeys(receivers.members, self.checksum)
        return WeightSyncResult(version, self.checksum, dict(receivers.failed), sent_bytes, changed_share)

    def _make_update(self, checksum: Checksum, receivers: WeightReceivers) -> WeightUpdate:
        """Return the changes if all receivers have the snapshot, otherwise all weights."""
        base = self._snapshot.checksum
        weights = checksum.watch(self.source)
        if not self.sparse:
            return WeightUpdate([complete_delta(name, tensor) for name, tensor in weights])
        if base is not None and all(self._acknowledged.get(member) == base for member in receivers.members):
            update = WeightUpdate(list(self._snapshot.diff(weights)), base, keep=True)
        else:
            deltas = [complete_delta(name, tensor) for name, tensor in self._snapshot.reset(weights)]
            update = WeightUpdate(deltas, keep=True)
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
        session, self._session = self._session, None
        if session is not None:
            session.engine.shutdown()

    def _make_trainer_engine(self, session: Any) -> Any:
        from vllm.distributed.weight_transfer import WeightTransferTrainerFactory

        info: Any
        if self.transport == "ipc":
            from vllm.distributed.weight_transfer.ipc_engine import IPCTrainerInitInfo

            info = IPCTrainerInitInfo(rank=0)
        else:
            from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo

            with socket.socket() as probe:
                probe.bind(("", 0))
                port = probe.getsockname()[1]
            receivers = session.receivers
            info = NCCLTrainerInitInfo(
                rank=0, master_address=receivers.address, master_port=port, world_size=1 + receivers.workers
            )
        source: Any = self.source  # has the two methods of vLLM's WeightSource that its engines use
        return WeightTransferTrainerFactory.trainer_init(info, client=session, source=source)


class _TransferSession:
    """A rendezvous of vLLM's trainer-side `engine` with the engines of `members`, and the `VLLMWeightSyncClient` that
    forwards the calls of the engine to the receivers of the current update."""

    def __init__(self, receivers: WeightReceivers) -> None:
        self.receivers, self.members = receivers, receivers.members
        self.engine: Any = None

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self.receivers.run_stage("init_weight_transfer_engine", init_info)

    def start_weight_update(self) -> None:
        self.receivers.run_stage("start_weight_update")

    def update_weights(self, update_info: dict[str, Any]) -> None:
        self.receivers.run_stage("update_weights", update_info)

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self.receivers.run_stage("finish_weight_update")


class CastSource:
    """The weights, cast to the wire dtype, in a fixed order (vLLM's `WeightSource`).

    Names are the names in the model's files, which engines load; transformers may rename weights (gpt_neox) or stack
    them (experts). `weights` gathers a sharded model; None: the model is not sharded.
    """

    def __init__(
        self, model: Any, dtype: torch.dtype, weights: WeightGatherer | None = None, device: torch.device | None = None
    ) -> None:
        self.model, self.dtype, self.device = model, dtype, device
        self.weights = weights or WeightGatherer(model)
        shapes = {n: torch.empty_like(p, dtype=dtype, device="meta") for n, p in self.weights}
        self.shapes = revert_weight_conversion(model, shapes)
        self.same_names = set(self.shapes) == set(shapes)

    def metadata(self) -> list[Any]:
        from vllm.distributed.weight_transfer.base import ParamMeta

        return [ParamMeta(name, self.dtype, tuple(shape.shape)) for name, shape in self.shapes.items()]

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        cast: Iterable[tuple[str, torch.Tensor]]
        cast = ((name, weight.to(self.dtype).to(self.device or weight.device)) for name, weight in self.weights)
        if not self.same_names:
            cast = revert_weight_conversion(self.model, dict(cast)).items()
        for name, tensor in cast:
            yield name, tensor.contiguous()
