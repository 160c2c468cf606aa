"""The sending side of weight sync, inside a learner.

`WeightSender` sends the policy to generators of the agent and returns when each of them has acknowledged version and
checksum, or is lost. Transports: `store` (CPU) hands the arrays over in one message, to those that hold what was sent
last only what has changed; `nccl` and `ipc` use vLLM's trainer-side engines, imported only then, and send everything.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch

from marl_ray.core.episode import WeightVersion
from marl_ray.core.ids import ActorId
from marl_ray.learning.sharding import WeightGatherer
from marl_ray.weights.checksum import Checksum
from marl_ray.weights.deltas import Snapshot, WeightUpdate, whole
from marl_ray.weights.receiver import Acknowledgement, WeightSyncResult

TransportName = Literal["store", "nccl", "ipc"]


class WeightSyncError(RuntimeError):
    """A generator did not take over the learner's weights."""


class ReceiverLostError(RuntimeError):
    """A generator was lost in the middle of an update; the others have not got it either."""


class WeightReceivers(Protocol):
    """Generators of one policy, for one publication; each call goes to all that are left, and returns when all have
    answered or are lost.

    The five in the middle are vLLM's stages, of which its engines drive the last four; they raise ReceiverLostError.
    """

    @property
    def failed(self) -> Mapping[ActorId, str]:
        """Those that were lost, and why."""

    @property
    def members(self) -> tuple[Any, ...]:
        """Those that are left, each in its present life."""

    @property
    def workers(self) -> int:
        """The workers of their engines together."""

    @property
    def address(self) -> str:
        """Of this node, as the generators reach it."""

    def shutdown_weight_transfer_engine(self) -> None: ...

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None: ...

    def start_weight_update(self) -> None: ...

    def update_weights(self, update_info: dict[str, Any]) -> None: ...

    def finish_weight_update(self, weight_version: str | None = None) -> None: ...

    def apply_update(self, version: WeightVersion, weights: WeightUpdate) -> list[Acknowledgement]: ...

    def set_version(self, version: WeightVersion) -> list[Acknowledgement]: ...


class WeightSender:
    """Pushes one agent's weights to its generators.

    `model` is the learner's module; `wire_dtype` is the dtype of the engines' weights; `weights` see `CastSource`.
    `sparse`: what has changed is sent, where that is less; for that this process and each worker of the generators keep
    a copy of the weights. None: with 16 bits a weight. With more nearly all of them change in a step. `device` is the
    learner's, which weights leave from, wherever they are; None: from where they are.
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
        """Of the weights last sent; None before that."""
        self._rendezvous: _Rendezvous | None = None
        self._base = Snapshot()
        self._held: dict[Any, int] = {}
        """The checksum of what a generator acknowledged last, by its name and life."""

    def update_weights(self, version: WeightVersion, receivers: WeightReceivers) -> WeightSyncResult:
        """Send the weights as `version`. Raises WeightSyncError."""
        checksum, sent_bytes, changed = Checksum(), 0, None
        if self.transport == "store":
            parcel = self._packed(checksum, receivers)
            sent_bytes, changed = parcel.nbytes, None if parcel.base is None else self._base.changed
            acknowledgements = receivers.apply_update(version, parcel)
        else:
            for _, tensor in checksum.watch(self.source):
                sent_bytes += tensor.nbytes
            self._send_in_stages(receivers)
            if self.transport == "ipc":  # an engine on this device may need the memory of what was sent, to serve
                torch.cuda.ipc_collect()
                torch.cuda.empty_cache()
            acknowledgements = receivers.set_version(version)
        self.checksum = checksum.value
        delivery = self._checked(version, self.checksum, acknowledgements, receivers, sent_bytes, changed)
        self._held |= dict.fromkeys(receivers.members, self.checksum)
        return delivery

    def _packed(self, checksum: Checksum, receivers: WeightReceivers) -> WeightUpdate:
        """All weights; or what has changed in them, where all that are to get it hold what was sent last."""
        base = self._base.checksum
        weights = checksum.watch(self.source)
        if not self.sparse:
            return WeightUpdate([whole(name, tensor) for name, tensor in weights])
        if base is not None and all(self._held.get(member) == base for member in receivers.members):
            parcel = WeightUpdate(list(self._base.rewritten(weights)), base, keep=True)
        else:
            parcel = WeightUpdate([whole(name, tensor) for name, tensor in self._base.kept(weights)], keep=True)
        self._base.checksum = checksum.value
        return parcel

    def set_version(self, version: WeightVersion, receivers: WeightReceivers) -> WeightSyncResult:
        """What was sent last is `version` too; it is sent if nothing was. Raises WeightSyncError."""
        if self.checksum is None:
            return self.update_weights(version, receivers)
        return self._checked(version, self.checksum, receivers.set_version(version), receivers)

    def _checked(
        self,
        version: WeightVersion,
        checksum: int,
        acknowledgements: Sequence[Acknowledgement],
        receivers: WeightReceivers,
        sent_bytes: int = 0,
        changed: float | None = None,
    ) -> WeightSyncResult:
        for got in acknowledgements:
            if (got.version, got.checksum) != (version, checksum):
                raise WeightSyncError(
                    f"{got.generator} acknowledged version {got.version} with checksum {got.checksum}, the learner "
                    f"sent version {version} with {checksum}"
                )
        return WeightSyncResult(version, checksum, dict(receivers.failed), sent_bytes, changed)

    def _send_in_stages(self, receivers: WeightReceivers) -> None:
        """To all that are left; where one is lost, once more without it: those that have begun begin again."""
        while receivers.members:
            try:
                if self._rendezvous is None or self._rendezvous.members != receivers.members:
                    self._meet(receivers)
                assert self._rendezvous is not None
                self._rendezvous.client.receivers = receivers
                self._rendezvous.engine.send_weights()
                return
            except ReceiverLostError:
                self._leave()

    def _meet(self, receivers: WeightReceivers) -> None:
        """A new rendezvous, of the generators that there are now."""
        self._leave()
        receivers.shutdown_weight_transfer_engine()
        client = _Client(receivers)
        self._rendezvous = _Rendezvous(receivers.members, client, self._join(client))

    def _leave(self) -> None:
        rendezvous, self._rendezvous = self._rendezvous, None
        if rendezvous is not None:
            rendezvous.engine.shutdown()

    def _join(self, client: _Client) -> Any:
        from vllm.distributed.weight_transfer import WeightTransferTrainerFactory

        info: Any
        if self.transport == "ipc":
            from vllm.distributed.weight_transfer.ipc_engine import IPCTrainerInitInfo

            info = IPCTrainerInitInfo(rank=0)
        else:
            from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo

            info = NCCLTrainerInitInfo(
                rank=0,
                master_address=client.receivers.address,
                master_port=_free_port(),
                world_size=1 + client.receivers.workers,
            )
        source: Any = self.source  # has the two methods of vLLM's WeightSource that these engines use
        caller: Any = client  # nor do they send lists of updates
        return WeightTransferTrainerFactory.trainer_init(info, client=caller, source=source)


class _Client:
    """vLLM's `VLLMWeightSyncClient`, which its engines keep for many publications: hands on to the present one's."""

    def __init__(self, receivers: WeightReceivers) -> None:
        self.receivers = receivers

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self.receivers.init_weight_transfer_engine(init_info)

    def start_weight_update(self) -> None:
        self.receivers.start_weight_update()

    def update_weights(self, update_info: dict[str, Any]) -> None:
        self.receivers.update_weights(update_info)

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self.receivers.finish_weight_update(weight_version)


@dataclass(slots=True)
class _Rendezvous:
    """`engine` is vLLM's trainer-side engine, which has met those `members`."""

    members: tuple[Any, ...]
    client: _Client
    engine: Any


class CastSource:
    """The weights, cast to the wire dtype, in a fixed order (vLLM's `WeightSource`).

    Under the names of the model's files, which are those that engines load: transformers may have given them others
    (gpt_neox), or have stacked them (experts). `weights` gathers those of a model that several ranks share out; None:
    nobody shares it.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        dtype: torch.dtype,
        weights: WeightGatherer | None = None,
        device: torch.device | None = None,
    ) -> None:
        self.model, self.dtype, self.device = model, dtype, device
        self.weights = weights or WeightGatherer(model)
        shapes = {n: torch.empty_like(p, dtype=dtype, device="meta") for n, p in self.weights}
        self.shapes = self._as_in_files(shapes)
        self.same_names = set(self.shapes) == set(shapes)

    def metadata(self) -> list[Any]:
        from vllm.distributed.weight_transfer.base import ParamMeta

        return [ParamMeta(name, self.dtype, tuple(shape.shape)) for name, shape in self.shapes.items()]

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        if self.same_names:
            for name, weight in self.weights:
                yield name, self._cast(weight).contiguous()
        else:
            cast = {name: self._cast(weight) for name, weight in self.weights}
            for name, tensor in self._as_in_files(cast).items():
                yield name, tensor.contiguous()

    def _cast(self, weight: torch.Tensor) -> torch.Tensor:
        return weight.to(self.dtype).to(weight.device if self.device is None else self.device)

    def _as_in_files(self, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        from transformers.core_model_loading import revert_weight_conversion

        model: Any = self.model
        return revert_weight_conversion(model, tensors)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]
