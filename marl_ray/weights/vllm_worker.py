"""The receiving side of weight synchronisation inside vLLM's workers: weight-transfer engines that compute a checksum.

`marl_ray.actors.engine` sets `WorkerExtension` as vLLM's worker extension; importing this module in a worker registers
the engines.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import torch
from vllm.distributed.weight_transfer import WeightTransferEngineFactory
from vllm.distributed.weight_transfer.base import WeightTransferEngine, WeightTransferInitInfo, WeightTransferUpdateInfo
from vllm.distributed.weight_transfer.nccl_engine import NCCLWeightTransferEngine, NCCLWeightTransferInitInfo
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

from marl_ray.learning.cpu_offload import memory_in_use, release_cached_memory
from marl_ray.weights.deltas import Checksum, Snapshot, WeightUpdate, to_tensor
from marl_ray.weights.nccl_transfer import join_as_receiver
from marl_ray.weights.slab_engine import SlabEngine
from marl_ray.weights.vllm_adapters import load_adapter, unserved_layers
from marl_ray.weights.vllm_private import (
    adapter_manager,
    are_repacked,
    kv_cache_tensors,
    runner_and_attention,
    take_repacked_experts,
    transfer_engine,
    update_is_active,
)

BACKENDS = {"store": "marl_store", "nccl": "marl_nccl", "ipc": "marl_ipc", "adapter": "marl_store"}
"""Names under which vLLM finds our transfer engines, by transport."""


class _Summed:
    """Mixin for a transfer engine that adds up the checksum of all received weights."""

    checksum: Checksum
    model: Any
    fatal_weight = -1
    """Number of the received weight at which this process kills itself; negative: none."""

    def start_weight_update(self) -> None:
        self.checksum = Checksum()
        super().start_weight_update()  # type: ignore[misc]

    def receive_weights(self, update_info: Any) -> None:
        model = self.model
        self.model = _WatchedModel(model, self.checksum, self.fatal_weight)
        try:
            super().receive_weights(update_info)  # type: ignore[misc]
        finally:
            self.model = model


class _WatchedModel:
    """A proxy for the model that adds each loaded weight to the checksum.

    The checksum is not deferred: reading its sum on the host waits for the device after each tensor. vLLM's NCCL
    receiver alternates between two streams, and a layer whose weights arrive in two chunks is finished on the second
    stream, which does not wait for the first one.
    """

    def __init__(self, model: torch.nn.Module, checksum: Checksum, fatal_weight: int) -> None:
        self._model: Any = model
        self._checksum = checksum
        self._left = fatal_weight

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> Any:
        return self._model.load_weights(self._checksum.watch(self._until_fatal(weights)))

    def _until_fatal(self, weights: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
        for weight in weights:
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            self._left -= 1
            yield weight

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


@dataclass
class StoreInitInfo(WeightTransferInitInfo):
    """Empty, because the object store needs no rendezvous."""


@dataclass
class StoreUpdateInfo(WeightTransferUpdateInfo):
    """A complete update in one message."""

    weights: WeightUpdate = field(default_factory=lambda: WeightUpdate([]))


class StoreEngine(WeightTransferEngine[StoreInitInfo, StoreUpdateInfo]):
    """A transfer engine for CPUs that loads arrays from the shared memory of Ray's object store."""

    init_info_cls = StoreInitInfo
    update_info_cls = StoreUpdateInfo

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.snapshot = Snapshot()

    def init_transfer_engine(self, init_info: StoreInitInfo) -> None:
        pass

    def start_weight_update(self) -> None:
        self.experts = take_repacked_experts(self.model)
        initialize_layerwise_reload(self.model)

    def finish_weight_update(self) -> None:
        finalize_layerwise_reload(self.model, self.model_config)
        if not are_repacked(self.experts):
            raise RuntimeError(f"vLLM cannot update the experts of {type(self.model).__name__} on a CPU")
        # vLLM's CPU kernels use a repacked copy of the output layer. Reloading updates the copy only if weights arrive
        # under the layer's own name, which weights tied to the embedding never do.
        for module in self.model.modules():
            if isinstance(module, ParallelLMHead):
                module.quant_method.process_weights_after_loading(module)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        self.receive_weights(self.parse_update_info(update_info))

    def receive_weights(self, update_info: StoreUpdateInfo) -> None:
        update = update_info.weights
        weights: Iterator[tuple[str, torch.Tensor]]
        if update.base is None:
            weights = ((delta.name, to_tensor(delta)) for delta in update.deltas)
            if update.keep:
                weights = self.snapshot.reset(weights)
        elif update.base == self.snapshot.checksum:
            weights = self.snapshot.apply(update.deltas)
        else:
            raise ValueError(f"update applies to weights {update.base}, this worker has {self.snapshot.checksum}")
        self.model.load_weights(weights)  # type: ignore[operator]

    def shutdown(self) -> None:
        pass


class SummedStoreEngine(_Summed, StoreEngine):
    def receive_weights(self, update_info: StoreUpdateInfo) -> None:
        super().receive_weights(update_info)
        self.snapshot.checksum = self.checksum.value if update_info.weights.keep else None


class SummedNcclEngine(_Summed, NCCLWeightTransferEngine):
    """vLLM's receiving engine with a session that ends when the sender or another receiver is lost."""

    model_update_group: Any

    def init_transfer_engine(self, init_info: NCCLWeightTransferInitInfo) -> None:
        # As vLLM's own method does, except for the group.
        self.packed = init_info.packed
        self.packed_num_buffers = init_info.packed_num_buffers
        self.packed_buffer_size_bytes = init_info.packed_buffer_size_bytes
        self.model_update_group = join_as_receiver(init_info, self.parallel_config.rank)

    def receive_weights(self, update_info: Any) -> None:
        with self.model_update_group.contain_failures():
            super().receive_weights(update_info)


WeightTransferEngineFactory.register_engine(BACKENDS["store"], SummedStoreEngine)
WeightTransferEngineFactory.register_engine(BACKENDS["nccl"], SummedNcclEngine)
WeightTransferEngineFactory.register_engine(BACKENDS["ipc"], SlabEngine)


class WorkerExtension:
    """Methods that vLLM adds to its worker. vLLM's own sleep mode frees GPU memory only; on a CPU the KV cache is freed
    here."""

    device: torch.device
    freed: list[tuple[torch.UntypedStorage, int]]
    adapter_checksums: Mapping[int, int] = MappingProxyType({})
    """Checksums of adapters by number; empty if the engine serves merged weights."""

    def abandon_weight_update(self) -> None:
        """End an update whose sender is gone, so that a new one can start. The weights are invalid until then."""
        if update_is_active(self):
            self.finish_weight_update()  # type: ignore[attr-defined]

    def exit_at_weight(self, number: int) -> None:
        """Kill this process when it loads weight `number` of an update, for a check of losses."""
        transfer_engine(self).fatal_weight = number

    def transfer_aborted(self) -> bool:
        """Return whether the transfer over NCCL has ended because another process is lost."""
        group = getattr(transfer_engine(self), "model_update_group", None)
        return group is not None and group.aborted

    def load_adapter(self, number: int, update: WeightUpdate) -> None:
        """Serve an update's adapter as adapter `number` from now on. The base model and other adapters stay."""
        checksum = load_adapter(adapter_manager(self), number, update)
        self.adapter_checksums = {**self.adapter_checksums, number: checksum}

    def unserved_layers(self, layers: Sequence[str]) -> list[str]:
        """Return the layers whose adapters vLLM would ignore."""
        return unserved_layers(adapter_manager(self), layers)

    def weight_checksum(self, adapter: int = 0) -> int:
        """Return the checksum of the tensors received last, for adapter number `adapter` if there are adapters."""
        if adapter in self.adapter_checksums:
            return self.adapter_checksums[adapter]
        return int(transfer_engine(self).checksum.value)

    def free_kv_cache(self) -> None:
        """Free the memory of the KV cache, which must not be used until `restore_kv_cache`."""
        self.freed = []
        for tensor in kv_cache_tensors(self):
            storage = tensor.untyped_storage()
            size = storage.nbytes()
            if size > 0:  # not yet freed with another layer
                self.freed.append((storage, size))
                storage.resize_(0)
        release_cached_memory(self.device)

    def restore_kv_cache(self) -> None:
        """Allocate the KV cache again, filled with zeros."""
        for storage, size in self.freed:
            storage.resize_(size)
            torch.empty(0, dtype=torch.uint8).set_(storage).zero_()  # type: ignore[call-overload]
        self.freed = []

    def runner_and_attention(self) -> tuple[str, str]:
        """Return the module of the model runner, and the attention backends of the model's layers."""
        return runner_and_attention(self)

    def memory_in_use(self) -> int:
        return memory_in_use(self.device)
