"""Optimizer steps whose state is in host memory and passes through the GPU in chunks.

AdamW's two moments take 8 bytes per parameter and are used for a few milliseconds of each step. With
`StreamedOptimizer` they stay in pinned host memory:

    copy in      chunk 1   chunk 2   chunk 3
    update                 chunk 1   chunk 2   chunk 3
    copy out                         chunk 1   chunk 2   chunk 3

The three run on streams of their own, and the bus carries both directions at once, so that a step takes about as long
as one of the copies. Each parameter is updated by the same kernel from the same values as without streaming, so results
are bit-identical. ZeRO-Offload (Ren et al., 2021) keeps the state in host memory too, and updates there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from marl_ray.learning.arguments import STREAM_CHUNK_BYTES
from marl_ray.learning.cpu_offload import HostBuffers, optimizer_state
from marl_ray.learning.sharding import local_tensor

MIN_STREAMED_BYTES = 64 * 2**10
"""Smaller tensors of the state stay on the device."""
Chunk = list[tuple[dict[str, Any], list[torch.Tensor]]]
"""Parameter groups of the optimizer, each with some of its parameters."""


class StreamedOptimizer:
    """Takes the steps of `optimizer`, whose state is on `device` only within `step`.

    Up to three chunks are on the device at a time. Small tensors stay there: AdamW's step counts, and the tables of
    8-bit AdamW, which all parameters share.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, device: torch.device) -> None:
        self._optimizer = optimizer
        self._device = device
        self._on_gpu = device.type == "cuda"
        self._host = HostBuffers(pinned=self._on_gpu)
        self._copy_in: torch.cuda.Stream | None = None
        self._copy_out: torch.cuda.Stream | None = None
        if self._on_gpu:
            self._copy_in = torch.cuda.Stream(device)
            self._copy_out = torch.cuda.Stream(device)

    def offload(self) -> None:
        """Move all state to host memory, after a checkpoint was loaded."""
        if self._on_gpu:
            for tensor in map(local_tensor, optimizer_state(self._optimizer)):
                if tensor.nbytes >= MIN_STREAMED_BYTES:
                    self._host.offload(tensor)
            torch.cuda.synchronize(self._device)

    @torch.no_grad()
    def step(self) -> None:
        """Take one step over all parameters that have a gradient."""
        chunks = list(self._chunks())
        fetched: list[Any] = []  # an event per chunk, at the end of its copy to the device
        stored: list[Any] = []  # an event per chunk, at the end of its copy to the host
        if chunks:
            fetched.append(self._fetch(chunks[0]))
        for number, chunk in enumerate(chunks):
            if number >= 2 and self._on_gpu:
                # The host is ahead of the copies. Without this wait all chunks would have memory at the same time.
                stored[number - 2].synchronize()
            if number + 1 < len(chunks):
                fetched.append(self._fetch(chunks[number + 1]))
            stored.append(self._update(chunk, fetched[number]))
        if self._on_gpu:
            torch.cuda.synchronize(self._device)

    def _chunks(self) -> Iterator[Chunk]:
        """Yield lists of parameter groups, each with some of its parameters."""
        chunk: Chunk = []
        size = 0
        for group in self._optimizer.param_groups:
            parameters: list[torch.Tensor] = []
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                # The size before the first step, when there is no state yet, is that of AdamW.
                state_bytes = 2 * local_tensor(parameter).nbytes
                if size and size + state_bytes > STREAM_CHUNK_BYTES:
                    yield [*chunk, (group, parameters)]
                    chunk = []
                    parameters = []
                    size = 0
                parameters.append(parameter)
                size += state_bytes
            chunk.append((group, parameters))
        if size:
            yield chunk

    def _fetch(self, chunk: Chunk) -> Any:
        """Start to copy the state of a chunk to the device. Return the event at the end of the copy, on a GPU."""
        if not self._on_gpu:
            return None
        assert self._copy_in is not None
        with torch.cuda.stream(self._copy_in):
            for tensor in self._state_of(chunk):
                tensor.data = tensor.data.to(self._device, non_blocking=True)
        return self._copy_in.record_event()

    def _update(self, chunk: Chunk, ready: Any) -> Any:
        """Update the parameters of a chunk, and start to copy its state to host memory. Return the event at the end of
        the copy, on a GPU."""
        everything = [(group, group["params"]) for group in self._optimizer.param_groups]
        if ready is not None:
            torch.cuda.current_stream(self._device).wait_event(ready)
        try:
            # The optimizer takes a step of all parameters in its groups.
            for group, _ in everything:
                group["params"] = []
            for group, parameters in chunk:
                group["params"] = parameters
            self._optimizer.step()
        finally:
            for group, parameters in everything:
                group["params"] = parameters
        if not self._on_gpu:
            return None
        assert self._copy_out is not None
        self._copy_out.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._copy_out):
            for tensor in self._state_of(chunk):
                # The allocator may give the memory to other streams only after this copy.
                tensor.data.record_stream(self._copy_out)
                self._host.offload(tensor)
        return self._copy_out.record_event()

    def _state_of(self, chunk: Chunk) -> Iterator[torch.Tensor]:
        """Yield the tensors of a chunk that are streamed; of sharded tensors this rank's shard."""
        for group, parameters in chunk:
            for tensor in map(local_tensor, optimizer_state(self._optimizer, [{**group, "params": parameters}])):
                if tensor.nbytes >= MIN_STREAMED_BYTES:
                    yield tensor
