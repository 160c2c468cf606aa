"""The slab: one buffer on a GPU through which a learner's rank gives weights to the engines on the same GPU.

The rank exports its slab once by CUDA IPC, and each engine worker opens it once. The slab exists as long as the
learner: PyTorch counts the openings of exported memory, and a count that a killed engine leaves behind would keep freed
memory in use. An update fills the slab with one
chunk of weights after another, and the workers copy each chunk before the next one is written:

    learner   write chunk 0 |              | write chunk 1 |              | ...
    engine                  | copy chunk 0 |               | copy chunk 1 | ...

Every rank therefore gathers all weights, and the ranks write the same chunks together, so a transfer runs to its end
even if a generator is lost on the way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch

from marl_ray.learning.cpu_offload import release_cached_memory
from marl_ray.learning.torch_private import export_to_processes, open_exported
from marl_ray.weights.deltas import Checksum

ALIGNMENT = 16
"""Weights begin at multiples of this number of bytes, so that kernels can copy whole vectors."""


@dataclass(frozen=True, slots=True)
class SlabPlace:
    """The place of one weight in the slab: `offset` in bytes, while the slab has `chunk`."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    chunk: int
    offset: int

    @property
    def nbytes(self) -> int:
        """Size of the weight in bytes."""
        return torch.Size(self.shape).numel() * getattr(torch, self.dtype).itemsize

    @property
    def end(self) -> int:
        """Offset of the first byte after the weight, aligned."""
        blocks = -(-(self.offset + self.nbytes) // ALIGNMENT)  # rounded up
        return blocks * ALIGNMENT


@dataclass(frozen=True)
class SlabLayout:
    """The places of all weights, in the order in which they are sent."""

    places: tuple[SlabPlace, ...]

    @classmethod
    def of(cls, shapes: Mapping[str, torch.Tensor], chunk_bytes: int) -> SlabLayout:
        """Return the layout of weights with these shapes and dtypes, in chunks of at most `chunk_bytes`, or of one
        larger weight."""
        places: list[SlabPlace] = []
        chunk = offset = 0
        for name, shape in shapes.items():
            dtype = str(shape.dtype).removeprefix("torch.")
            place = SlabPlace(name, dtype, tuple(shape.shape), chunk, offset)
            if offset and place.end > chunk_bytes:
                chunk += 1
                place = replace(place, chunk=chunk, offset=0)
            places.append(place)
            offset = place.end
        return cls(tuple(places))

    @cached_property
    def chunks(self) -> list[list[SlabPlace]]:
        """The places of each chunk."""
        chunks: list[list[SlabPlace]] = [[] for _ in range(self.places[-1].chunk + 1)]
        for place in self.places:
            chunks[place.chunk].append(place)
        return chunks

    @property
    def nbytes(self) -> int:
        """Size of the slab in bytes."""
        return max(place.end for place in self.places)

    def used(self, slab: torch.Tensor, chunk: int) -> torch.Tensor:
        """Return the part of the slab that a chunk occupies, as 64-bit words."""
        return slab[: self.chunks[chunk][-1].end].view(torch.int64)

    def views(self, slab: torch.Tensor, chunk: int) -> dict[str, torch.Tensor]:
        """Return the weights of a chunk as views of the slab."""
        found = {}
        for place in self.chunks[chunk]:
            part = slab[place.offset : place.offset + place.nbytes]
            found[place.name] = part.view(getattr(torch, place.dtype)).view(place.shape)
        return found


def allocate_slab(nbytes: int, device: torch.device) -> torch.Tensor:
    """Return a slab filled with zeros, so that the gaps between weights never differ."""
    return torch.zeros(nbytes, dtype=torch.uint8, device=device)


def gpu_key(device: torch.device) -> str:
    """Return the name of a GPU that all processes use, whichever of them they see."""
    return str(torch.cuda.get_device_properties(device).uuid)


def export_slab(slab: torch.Tensor) -> dict[str, tuple[Any, ...]]:
    """Return the CUDA IPC handle of a slab under the name of its GPU."""
    return {gpu_key(slab.device): export_to_processes(slab)}


def open_slab(handles: Mapping[str, tuple[Any, ...]], device: torch.device) -> torch.Tensor:
    """Return the slab of the learner's rank on this GPU. Raises RuntimeError if there is no rank."""
    key = gpu_key(device)
    if key not in handles:
        raise RuntimeError(f"no learner rank is on this engine's GPU {key}, but on {', '.join(handles)}")
    return open_exported(handles[key], torch.cuda.current_device())


class SlabWriter:
    """The slab of one rank of a learner.

    source: yields the weights in the order of `layout`, on `device`.
    gather: returns the values of all ranks; a collective call.
    wait_for_ranks: returns when all ranks have called it.
    """

    def __init__(
        self,
        source: Any,
        layout: SlabLayout,
        device: torch.device,
        gather: Callable[[Any], list[Any]],
        wait_for_ranks: Callable[[], None],
    ) -> None:
        self.layout = layout
        self.checksum = Checksum(deferred=True)
        self._source = source
        self._device = device
        self._gather = gather
        self._wait_for_ranks = wait_for_ranks
        self._slab: torch.Tensor | None = None
        self._handles: dict[str, tuple[Any, ...]] = {}
        self._informed: Any = None
        """The client whose generators have the present handles."""

    def send(self, client: Any = None) -> None:
        """Send all weights; a collective call. Rank 0 has a `client` that makes vLLM's calls to the generators."""
        slab = self._open()
        if client is not None:
            if client is not self._informed:
                self._informed = client
                # Handles of all ranks: each worker finds the handle of its own GPU.
                client.init_weight_transfer_engine({"handles": self._handles, "layout": self.layout})
            client.start_weight_update()
        for chunk in self._fill(slab):
            self._wait_for_ranks()  # all slabs are filled
            if client is not None:
                client.update_weights({"chunk": chunk})
            self._wait_for_ranks()  # all slabs are copied
        if client is not None:
            client.finish_weight_update()

    def _open(self) -> torch.Tensor:
        if self._slab is None:
            # A part of a larger block of the allocator would keep the block from being released.
            release_cached_memory(self._device)
            self._slab = allocate_slab(self.layout.nbytes, self._device)
            for handles in self._gather(export_slab(self._slab)):
                self._handles |= handles
        return self._slab

    def _fill(self, slab: torch.Tensor) -> Iterator[int]:
        """Yield the number of each chunk while the slab has it."""
        self.checksum = Checksum(deferred=True)
        weights = iter(self._source)
        for chunk in range(len(self.layout.chunks)):
            for place in self.layout.chunks[chunk]:  # no rest of an earlier chunk between two weights
                slab[place.offset + place.nbytes : place.end].zero_()
            for expected, view in self.layout.views(slab, chunk).items():
                name, tensor = next(weights)
                if name != expected:
                    raise RuntimeError(f"weight {name} came where {expected} is next")
                view.copy_(tensor)
            add_chunk(self.checksum, self.layout, slab, chunk)
            if self._device.type == "cuda":
                torch.cuda.synchronize(self._device)  # the engines read on streams of their own
            yield chunk


def add_chunk(checksum: Checksum, layout: SlabLayout, slab: torch.Tensor, chunk: int) -> None:
    """Add the contents of the slab to a checksum, in a few kernels for all weights of the chunk."""
    for _ in checksum.watch([(f"chunk {chunk}", layout.used(slab, chunk))]):
        pass
