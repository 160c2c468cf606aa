"""Weight transfers by CUDA IPC: an engine worker reads weights from the memory of the learner rank on its own GPU.

Every rank therefore gathers and packs all weights. The ranks exchange the handles of each message, and rank 0 sends the
handles to the generators. All ranks go through the same messages together, so a transfer runs to its end even if a
generator is lost on the way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from vllm.distributed.weight_transfer import WeightTransferTrainerFactory
from vllm.distributed.weight_transfer.ipc_engine import IPCTrainerInitInfo

from marl_ray.learning.cpu_offload import release_cached_memory
from marl_ray.learning.sharding import WeightGatherer
from marl_ray.weights.receiver import ReceiverLostError


def make_ipc_engine(source: Any, buffer_bytes: int, client: Any = None) -> Any:
    """Return vLLM's sending engine of this rank, with messages of `buffer_bytes`. Only rank 0 has a `client`."""
    # Without packing, a copy of all weights would be on the device during the transfer.
    info = IPCTrainerInitInfo(rank=int(client is None), packed=True, packed_buffer_size_bytes=buffer_bytes)
    return WeightTransferTrainerFactory.trainer_init(info, client=client, source=source)


def send_and_release(engine: Any) -> None:
    """Send all weights from this rank, and return the memory of the messages to the device, where an engine allocates
    its KV cache next."""
    engine.send_weights()
    release_cached_memory(torch.device("cuda"))


class IpcSender:
    """The sending engine of rank 0, which the other ranks accompany (`WeightGatherer.accompany`).

    Args:
        client: makes vLLM's calls to the generators. Raises ReceiverLostError.
        source: the weights.
        weights: the gatherer of `source`.
        buffer_bytes: size of a packed message.
    """

    def __init__(self, client: Any, source: Any, weights: WeightGatherer, buffer_bytes: int) -> None:
        self._client, self._weights = _CompletingClient(client), weights
        self._engine = make_ipc_engine(source, buffer_bytes, self._client)

    def send_weights(self) -> None:
        """Send all weights. Raises ReceiverLostError after the last message."""
        self._client.lost = None
        with self._weights.lead():
            send_and_release(self._engine)
        if self._client.lost is not None:
            raise self._client.lost

    def shutdown(self) -> None:
        self._engine.shutdown()


class _CompletingClient:
    """A client that skips all calls after the loss of a receiver, so that the ranks remain in step."""

    def __init__(self, client: Any) -> None:
        self.lost: ReceiverLostError | None = None
        self.init_weight_transfer_engine = client.init_weight_transfer_engine
        self._client = client

    def start_weight_update(self) -> None:
        self._call(self._client.start_weight_update)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        self._call(lambda: self._client.update_weights(update_info))

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self._call(self._client.finish_weight_update)

    def _call(self, call: Callable[[], None]) -> None:
        if self.lost is None:
            try:
                call()
            except ReceiverLostError as error:
                self.lost = error
