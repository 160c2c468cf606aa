"""The sending side of weight sync, inside a learner.

`Publisher` sends one version of the policy to every generator of the agent and returns when each has acknowledged
version and checksum. Transports: `store` (CPU) hands the arrays over in one message; `nccl` and `ipc` use vLLM's
trainer-side engines, imported only then.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from typing import Any, Literal, Protocol

import torch

from marl_ray.core.tree import WeightVersion
from marl_ray.weights.checksum import Checksum
from marl_ray.weights.receiving import Acknowledgement

TransportName = Literal["store", "nccl", "ipc"]


class SyncError(RuntimeError):
    """A generator did not take over the learner's weights."""


class Receivers(Protocol):
    """The generators of one agent; each call goes to all of them, and returns when all have answered.

    The four methods in the middle are vLLM's `VLLMWeightSyncClient`, which its engines drive.
    """

    @property
    def ranks(self) -> int:
        """The workers of all engines together."""

    @property
    def address(self) -> str:
        """Of this node, as the generators reach it."""

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None: ...

    def start_weight_update(self) -> None: ...

    def update_weights(self, update_info: dict[str, Any]) -> None: ...

    def finish_weight_update(self, weight_version: str | None = None) -> None: ...

    def refit(self, version: WeightVersion, weights: Any) -> list[Acknowledgement]: ...

    def commit(self, version: WeightVersion) -> list[Acknowledgement]: ...


class Publisher:
    """Pushes one agent's weights to its generators.

    `model` is the learner's module; `wire_dtype` is the dtype of the engines' weights.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        wire_dtype: torch.dtype,
        transport: TransportName,
        receivers: Receivers,
    ) -> None:
        self.source = CastSource(model, wire_dtype)
        self.receivers = receivers
        self.checksum = 0
        """Of the weights last sent."""
        self._vllm_engine = None if transport == "store" else self._join(transport)

    def publish(self, version: WeightVersion) -> int:
        """Send the weights as `version`; returns their checksum. Raises SyncError."""
        checksum = Checksum()
        if self._vllm_engine is None:
            weights = [
                (name, tensor.reshape(-1).view(torch.uint8).numpy(), _dtype_name(tensor), tuple(tensor.shape))
                for name, tensor in checksum.watch(self.source)
            ]
            acknowledgements = self.receivers.refit(version, weights)
        else:
            for _ in checksum.watch(self.source):
                pass
            self._vllm_engine.send_weights()
            acknowledgements = self.receivers.commit(version)
        self.checksum = checksum.value
        return self._checked(version, acknowledgements)

    def relabel(self, version: WeightVersion) -> int:
        """What was sent last is `version` too; returns its checksum. Raises SyncError."""
        return self._checked(version, self.receivers.commit(version))

    def _checked(self, version: WeightVersion, acknowledgements: Sequence[Acknowledgement]) -> int:
        for got in acknowledgements:
            if (got.version, got.checksum) != (version, self.checksum):
                raise SyncError(
                    f"{got.generator} acknowledged version {got.version} with checksum {got.checksum}, the learner "
                    f"sent version {version} with {self.checksum}"
                )
        return self.checksum

    def _join(self, transport: TransportName) -> Any:
        from vllm.distributed.weight_transfer import WeightTransferTrainerFactory

        info: Any
        if transport == "ipc":
            from vllm.distributed.weight_transfer.ipc_engine import IPCTrainerInitInfo

            info = IPCTrainerInitInfo(rank=0)
        else:
            from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo

            info = NCCLTrainerInitInfo(
                rank=0,
                master_address=self.receivers.address,
                master_port=_free_port(),
                world_size=1 + self.receivers.ranks,
            )
        source: Any = self.source  # has the two methods of vLLM's WeightSource that these engines use
        client: Any = self.receivers
        return WeightTransferTrainerFactory.trainer_init(info, client=client, source=source)


class CastSource:
    """The parameters, detached and cast to the wire dtype, in a fixed order (vLLM's `WeightSource`).

    Under the names of the model's files, which are those that engines load: transformers may have given them others
    (gpt_neox), or have stacked them (experts).
    """

    def __init__(self, model: torch.nn.Module, dtype: torch.dtype) -> None:
        self.model, self.dtype = model, dtype
        shapes = {n: torch.empty_like(p, dtype=dtype, device="meta") for n, p in model.named_parameters()}
        self.shapes = self._as_in_files(shapes)
        self.same_names = set(self.shapes) == set(shapes)

    def metadata(self) -> list[Any]:
        from vllm.distributed.weight_transfer.base import ParamMeta

        return [ParamMeta(name, self.dtype, tuple(shape.shape)) for name, shape in self.shapes.items()]

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        if self.same_names:
            parameters = dict(self.model.named_parameters())
            for name in self.shapes:
                yield name, parameters[name].detach().to(self.dtype).contiguous()
        else:
            cast = {name: parameter.detach().to(self.dtype) for name, parameter in self.model.named_parameters()}
            for name, tensor in self._as_in_files(cast).items():
                yield name, tensor.contiguous()

    def _as_in_files(self, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        from transformers.core_model_loading import revert_weight_conversion

        model: Any = self.model
        return revert_weight_conversion(model, tensors)


def _dtype_name(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]
