"""Weight transfers by CUDA IPC: an engine worker reads weights from the slab of the learner rank on its own GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from marl_ray.learning.sharding import WeightGatherer
from marl_ray.weights.slab import SlabWriter


class IpcSender:
    """The sender of rank 0, whose transfers the other ranks accompany (`WeightGatherer.accompany`).

    Args:
        client: makes vLLM's calls to the generators.
        writer: the slab of rank 0.
        weights: the gatherer of the weights.
    """

    def __init__(self, client: Any, writer: SlabWriter, weights: WeightGatherer) -> None:
        self._client = _CompletingClient(client)
        self._writer = writer
        self._weights = weights

    def send_weights(self) -> None:
        """Send all weights. Raises the first error of a call to the generators, after the last chunk."""
        self._client.lost = None
        with self._weights.lead():
            self._writer.send(self._client)
        if self._client.lost is not None:
            raise self._client.lost

    def shutdown(self) -> None:
        """Do nothing: the slab serves the next session too."""


class _CompletingClient:
    """A client that skips all calls after an error, such as the loss of a receiver, so that the ranks remain in
    step."""

    def __init__(self, client: Any) -> None:
        self.lost: Exception | None = None
        self._client = client

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self._call(lambda: self._client.init_weight_transfer_engine(init_info))

    def start_weight_update(self) -> None:
        self._call(self._client.start_weight_update)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        self._call(lambda: self._client.update_weights(update_info))

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self._call(self._client.finish_weight_update)

    def _call(self, call: Callable[[], None]) -> None:
        if self.lost is not None:
            return
        try:
            call()
        except Exception as error:  # raised after all ranks have sent their last chunk
            self.lost = error
