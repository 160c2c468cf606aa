"""The receiving side of the slab in vLLM's workers.

The first update goes through vLLM's layer-wise reload, which is right for every model. The engine then records the
copies of this model, and checks that the recorded places hold the weights that it has received. From the second update
on it copies. A model that does more than to copy its weights is reloaded layer by layer in every update.
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from vllm.distributed.weight_transfer.base import WeightTransferEngine, WeightTransferInitInfo, WeightTransferUpdateInfo
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

from marl_ray.weights.deltas import Checksum
from marl_ray.weights.recorded_copies import CannotRecord, RecordedCopies, record, sum_of_words
from marl_ray.weights.slab import SlabLayout, add_chunk, allocate_slab, open_slab

logger = logging.getLogger(__name__)


@dataclass
class SlabInitInfo(WeightTransferInitInfo):
    """The handles of the slab by GPU, and its layout."""

    handles: Mapping[str, tuple[Any, ...]]
    layout: SlabLayout


@dataclass
class SlabUpdateInfo(WeightTransferUpdateInfo):
    """The number of the chunk in the slab."""

    chunk: int


class SlabEngine(WeightTransferEngine[SlabInitInfo, SlabUpdateInfo]):
    """A transfer engine that reads weights from the slab of the learner's rank on its GPU.

    checksum: sum over the chunks of the last update, as the learner computes it.
    fatal_weight: number of the received weight at which this process kills itself; negative: none.
    """

    init_info_cls = SlabInitInfo
    update_info_cls = SlabUpdateInfo

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.checksum = Checksum(deferred=True)
        self.fatal_weight = -1
        self._info: SlabInitInfo | None = None
        self._slab: torch.Tensor | None = None
        self._copies: RecordedCopies | None = None
        self._can_record = self.parallel_config.tensor_parallel_size == 1
        self._received = 0
        self._sums: list[torch.Tensor] = []
        """Sums of the words of each received chunk."""

    def init_transfer_engine(self, init_info: SlabInitInfo) -> None:
        self._close()
        self._info = init_info

    def start_weight_update(self) -> None:
        assert self._info is not None, "the learner has sent its handles"
        self.checksum = Checksum(deferred=True)
        self._received = 0
        self._sums = []
        if self._slab is None:
            self._slab = open_slab(self._info.handles, self.device)
            if self._copies is not None:
                self._copies.bind(self._info.layout, self._slab)
        if self._copies is None:
            initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        self.receive_weights(self.parse_update_info(update_info))
        if self.device.type == "cuda":  # the learner overwrites the slab after this call
            torch.cuda.synchronize(self.device)

    def receive_weights(self, update_info: SlabUpdateInfo) -> None:
        assert self._info is not None
        assert self._slab is not None
        layout = self._info.layout
        chunk = update_info.chunk
        add_chunk(self.checksum, layout, self._slab, chunk)
        weights = layout.views(self._slab, chunk)
        if self._copies is None:
            self.model.load_weights(self._until_fatal(weights))  # type: ignore[operator]
        else:
            if 0 <= self.fatal_weight - self._received < len(weights):
                os.kill(os.getpid(), signal.SIGKILL)
            self._copies.copy(chunk)
            self._sums.append(sum_of_words(layout.used(self._slab, chunk)))
        self._received += len(weights)

    def finish_weight_update(self) -> None:
        """End an update. Raises RuntimeError if the parameters differ from the weights that were sent."""
        assert self._info is not None
        is_complete = self._received == len(self._info.layout.places)
        if self._copies is not None:
            if is_complete and sum(self._sums) != self._copies.sum_of_parameters():
                self._copies = None
                raise RuntimeError("the parameters of the engine differ from the weights that were sent")
        else:
            finalize_layerwise_reload(self.model, self.model_config)
            if is_complete and self._can_record:
                self._record()

    def shutdown(self) -> None:
        self._close()
        self._info = None

    def _close(self) -> None:
        """Close the slab."""
        if self._copies is not None:
            self._copies.release()
        self._slab = None
        if self.device.type == "cuda":
            torch.cuda.ipc_collect()

    def _until_fatal(self, weights: Mapping[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield copies of weights, since vLLM keeps weights until their layer is complete, perhaps in a later chunk."""
        for number, (name, weight) in enumerate(weights.items(), self._received):
            if number == self.fatal_weight:
                os.kill(os.getpid(), signal.SIGKILL)
            yield name, weight.clone()

    def _record(self) -> None:
        """Record the copies of later updates, and compare the parameters with the weights of this one."""
        assert self._info is not None
        assert self._slab is not None
        self._can_record = False  # once
        layout = self._info.layout
        shapes = {}
        for place in layout.places:
            shapes[place.name] = torch.empty(place.shape, dtype=getattr(torch, place.dtype), device="meta")
        try:
            copies = record(self.model, shapes)
            if _checksum_of(copies, layout, self._slab.device) != self.checksum.value:
                raise CannotRecord("its parameters differ from the weights")
        except CannotRecord as reason:
            logger.info("weights are loaded layer by layer: %s", reason)
            return
        copies.bind(layout, self._slab)
        self._copies = copies


def _checksum_of(copies: RecordedCopies, layout: SlabLayout, device: torch.device) -> int:
    """Return the checksum of an update with the weights that are in the parameters."""
    checksum = Checksum(deferred=True)
    slab = allocate_slab(layout.nbytes, device)
    for chunk in range(len(layout.chunks)):
        slab.zero_()
        for name, view in layout.views(slab, chunk).items():
            copies.read(name, view)
        add_chunk(checksum, layout, slab, chunk)
    return checksum.value
