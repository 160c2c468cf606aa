"""The receiving side of weight sync, inside vLLM's workers.

vLLM's weight-transfer engines (`nccl` between devices, `ipc` on one device) do the work on GPUs; on CPU ours
reads arrays that the learner put into Ray's object store. Each sums up what it receives, so that a generator
can acknowledge a checksum. `marl_ray.actors.vllm_arguments` names `WorkerExtension` as vLLM's worker extension:
importing this module in a worker registers the engines there.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from vllm.distributed.weight_transfer import WeightTransferEngineFactory
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.ipc_engine import IPCWeightTransferEngine
from vllm.distributed.weight_transfer.nccl_engine import NCCLWeightTransferEngine
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

from marl_ray.weights.checksum import Checksum
from marl_ray.weights.deltas import Snapshot, WeightUpdate, unpacked
from marl_ray.weights.sleeping import WorkerSleepExtension

BACKENDS = {"store": "marl_store", "nccl": "marl_nccl", "ipc": "marl_ipc"}


class _Summed:
    """Mixed into a transfer engine: adds up what `receive_weights` hands on to be loaded, from start to finish."""

    checksum: Checksum
    model: Any

    def start_weight_update(self) -> None:
        self.checksum = Checksum()
        super().start_weight_update()  # type: ignore[misc]

    def receive_weights(self, update_info: Any) -> None:
        model = self.model
        self.model = _WatchedModel(model, self.checksum)
        try:
            super().receive_weights(update_info)  # type: ignore[misc]
        finally:
            self.model = model


class _WatchedModel:
    """Stands for the model while weights arrive."""

    def __init__(self, model: torch.nn.Module, checksum: Checksum) -> None:
        self._model, self._checksum = model, checksum

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> Any:
        return self._model.load_weights(self._checksum.watch(weights))  # type: ignore[operator]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


@dataclass
class StoreInitInfo(WeightTransferInitInfo):
    """The object store needs no rendezvous."""


@dataclass
class StoreUpdateInfo(WeightTransferUpdateInfo):
    """A whole publication."""

    weights: WeightUpdate = field(default_factory=lambda: WeightUpdate([]))


class StoreEngine(WeightTransferEngine[StoreInitInfo, StoreUpdateInfo]):
    """Loads arrays that already lie in this process' view of the object store."""

    init_info_cls = StoreInitInfo
    update_info_cls = StoreUpdateInfo

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.base = Snapshot()

    def init_transfer_engine(self, init_info: StoreInitInfo) -> None:
        pass

    def start_weight_update(self) -> None:
        # vLLM's CPU kernels multiply by repacked experts too, and repack only when they are set up.
        self.experts = [module for module in self.model.modules() if getattr(module, "moe_kernel", None) is not None]
        for module in self.experts:
            module.moe_kernel = None  # type: ignore[assignment]
        initialize_layerwise_reload(self.model)

    def finish_weight_update(self) -> None:
        finalize_layerwise_reload(self.model, self.model_config)
        if any(module.moe_kernel is None for module in self.experts):
            raise RuntimeError(f"vLLM cannot give new weights to the experts of {type(self.model).__name__} on a CPU")
        # vLLM's CPU kernels multiply by a repacked copy of the output layer. Reloading renews it only when
        # weights arrive under the layer's own name, which those tied to the embedding never do.
        for module in self.model.modules():
            if isinstance(module, ParallelLMHead):
                module.quant_method.process_weights_after_loading(module)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        self.receive_weights(self.parse_update_info(update_info))

    def receive_weights(self, update_info: StoreUpdateInfo) -> None:
        parcel = update_info.weights
        if parcel.base is not None:
            if parcel.base != self.base.checksum:
                raise ValueError(f"changes of weights {parcel.base}, and here are {self.base.checksum}")
            weights = self.base.applied(parcel.pieces)
        else:
            weights = ((piece.name, unpacked(piece)) for piece in parcel.pieces)
            if parcel.keep:
                weights = self.base.kept(weights)
        self.model.load_weights(weights)  # type: ignore[operator]

    def shutdown(self) -> None:
        pass


class SummedStoreEngine(_Summed, StoreEngine):
    """`store`, with a checksum."""

    def receive_weights(self, update_info: StoreUpdateInfo) -> None:
        super().receive_weights(update_info)
        self.base.checksum = self.checksum.value if update_info.weights.keep else None


class SummedNcclEngine(_Summed, NCCLWeightTransferEngine):
    """`nccl`, with a checksum."""


class SummedIpcEngine(_Summed, IPCWeightTransferEngine):
    """`ipc`, with a checksum."""


for _backend, _engine in (
    ("store", SummedStoreEngine),
    ("nccl", SummedNcclEngine),
    ("ipc", SummedIpcEngine),
):
    WeightTransferEngineFactory.register_engine(BACKENDS[_backend], _engine)


class WorkerExtension(WorkerSleepExtension):
    """Methods that vLLM adds to its worker."""

    def abandon_weight_update(self) -> None:
        """End an update whose sender is gone, so that a whole one can begin; the weights are of no use until then."""
        if self._weight_update_active:  # type: ignore[attr-defined]
            self.finish_weight_update()  # type: ignore[attr-defined]

    def weight_checksum(self) -> int:
        """Checksum of what the last weight update received."""
        return self.weight_transfer_engine.checksum.value  # type: ignore[attr-defined]
