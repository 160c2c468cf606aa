"""Messages of weight updates, sparse where few values of a tensor change, and the checksum that verifies their arrival.

Sender and receivers keep a copy of the weights sent last (`Snapshot`); docs/explanation/weight_synchronisation.md.
"""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

MODULUS = 2**61 - 1
WORD_TYPES = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
COLUMNS = 4096
"""Width of the matrix of a tensor's words, whose sums by row and by column are the checksum."""
COLUMN_FACTOR = 0x9E3779B97F4A7C15
"""A large odd number, so that changes of both sums do not cancel."""
MAX_GAP = 2**16 - 1
"""Maximum distance of two values of a sparse delta, so that a gap fits into 16 bits."""


def _header(name: str, tensor: torch.Tensor) -> int:
    return zlib.crc32(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())


def _word_sums(tensor: torch.Tensor) -> torch.Tensor:
    """Return the sums of the words weighted by their row and by their column in a matrix, [2], on the tensor's device.

    Two exchanged words differ in their row or in their column, so that one of the sums changes. Sums wrap at 64 bits.
    """
    words = _words(tensor.detach().contiguous())
    rows = len(words) // COLUMNS
    matrix = words[: rows * COLUMNS].view(rows, COLUMNS)
    rest = words[rows * COLUMNS :]  # the last, incomplete row
    by_row = _weighted_sum(matrix.sum(dim=1, dtype=torch.int64)) + (rows + 1) * rest.sum(dtype=torch.int64)
    by_column = _weighted_sum(matrix.sum(dim=0, dtype=torch.int64)) + _weighted_sum(rest.to(torch.int64))
    return torch.stack([by_row, by_column])


def _weighted_sum(values: torch.Tensor) -> torch.Tensor:
    """Return the sum of the values, each times its position from 1."""
    return (values * torch.arange(1, len(values) + 1, device=values.device)).sum()


def _combine(header: int, by_row: int, by_column: int) -> int:
    """Return the checksum of a tensor from the checksum of its name, shape and dtype, and the sums of its words."""
    return ((by_row + COLUMN_FACTOR * by_column) * 2 + 1) * (header + 1) % MODULUS


class Checksum:
    """A sum over the checksums of named tensors, independent of their order.

    With `deferred`, sums stay on the device until `value` is read, so that the device need not finish after every
    tensor. Then the caller waits for all streams that computed tensors before reading `value`.
    """

    def __init__(self, value: int = 0, deferred: bool = False) -> None:
        self._value = value
        self._deferred = deferred
        self._pending: list[tuple[int, torch.Tensor]] = []

    @property
    def value(self) -> int:
        if not self._pending:
            return self._value
        headers, sums = zip(*self._pending, strict=True)
        on_host = torch.stack(sums).tolist()  # one synchronisation with the device
        for header, (by_row, by_column) in zip(headers, on_host, strict=True):
            self._value = (self._value + _combine(header, by_row, by_column)) % MODULUS
        self._pending = []
        return self._value

    def watch(self, weights: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield `weights` unchanged and add each tensor to the sum."""
        for name, tensor in weights:
            self._pending.append((_header(name, tensor), _word_sums(tensor)))
            if not self._deferred:
                _ = self.value
            yield name, tensor


@dataclass(frozen=True, slots=True)
class TensorDelta:
    """One tensor of a weight update, complete or as changes to a snapshot.

    values: the bytes of the tensor, or of its changed values. gaps: uint16 distances of the changed values, the first
    counted from position -1; None for a complete tensor. A sparse delta repeats some unchanged values where a gap would
    exceed MAX_GAP.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    values: np.ndarray[Any, Any]
    gaps: np.ndarray[Any, Any] | None = None

    @property
    def nbytes(self) -> int:
        """Size in bytes as sent."""
        if self.gaps is None:
            return self.values.nbytes
        return self.values.nbytes + self.gaps.nbytes


@dataclass(frozen=True, slots=True)
class WeightUpdate:
    """A message with all tensors of a weight update."""

    deltas: list[TensorDelta]
    base: int | None = None
    """Checksum of the snapshot that sparse deltas apply to; None if all tensors are complete."""
    keep: bool = False
    """True if the receiver stores the resulting weights as its next snapshot."""
    adapter_scale: float | None = None
    """Factor of an adapter's products, if the tensors are an adapter; None if they are the model's weights."""

    @property
    def nbytes(self) -> int:
        return sum(delta.nbytes for delta in self.deltas)


class Snapshot:
    """A copy, in host memory, of the weights sent last."""

    def __init__(self) -> None:
        self.checksum: int | None = None
        """Checksum of the weights, set by the caller once all are written; None before that."""
        self.changed = 1.0
        """Fraction of values that the last `diff` found changed."""
        self._tensors: dict[str, torch.Tensor] = {}

    def reset(self, weights: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
        """Replace the snapshot by copies of `weights`, and yield them."""
        self.checksum = None
        self._tensors = {}
        for name, tensor in weights:
            self._tensors[name] = tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
            yield name, self._tensors[name]

    def diff(self, weights: Iterable[tuple[str, torch.Tensor]]) -> Iterator[TensorDelta]:
        """Update the snapshot to `weights`, and yield the deltas, which are views of the snapshot."""
        self.checksum = None
        changed = total = 0
        for name, tensor in weights:
            delta, changed_values = _tensor_diff(name, self._tensors[name], tensor.detach().to("cpu"))
            changed += changed_values
            total += tensor.numel()
            yield delta
        self.changed = changed / total if total else 0.0

    def apply(self, deltas: Iterable[TensorDelta]) -> Iterator[tuple[str, torch.Tensor]]:
        """Apply deltas to the snapshot, and yield the resulting tensors."""
        self.checksum = None
        for delta in deltas:
            tensor = self._tensors[delta.name]
            if delta.gaps is None:
                tensor.copy_(to_tensor(delta))
            else:
                positions = torch.from_numpy(np.cumsum(delta.gaps, dtype=np.int64) - 1)
                words = _words(tensor)
                words[positions] = _from_bytes(delta.values, words.dtype)
            yield delta.name, tensor


def complete_delta(name: str, tensor: torch.Tensor) -> TensorDelta:
    """Return a delta with all of a contiguous tensor in host memory."""
    values = _words(tensor).numpy().view(np.uint8)  # torch cannot view empty tensors as bytes
    return TensorDelta(name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), values)


def to_tensor(delta: TensorDelta) -> torch.Tensor:
    """Return a read-only view of a complete tensor; loading copies it into the model."""
    return _from_bytes(delta.values, getattr(torch, delta.dtype)).reshape(delta.shape)


def _tensor_diff(name: str, before: torch.Tensor, after: torch.Tensor) -> tuple[TensorDelta, int]:
    """Copy `after` into `before`; return the smaller of a complete and a sparse delta, and the number of changes."""
    old = _words(before)
    new = _words(after.contiguous())
    positions = (old != new).nonzero().reshape(-1).numpy()
    old.copy_(new)
    delta = complete_delta(name, before)
    # A changed value is sent with a gap of two bytes.
    if positions.size * (2 + new.element_size()) >= new.numel() * new.element_size():
        return delta, positions.size
    close = _limit_gaps(positions)
    values = new[torch.from_numpy(close)].numpy().view(np.uint8)
    gaps = np.diff(close, prepend=-1).astype(np.uint16)
    return replace(delta, values=values, gaps=gaps), positions.size


def _limit_gaps(positions: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return ascending positions with others inserted between those more than MAX_GAP apart."""
    if not positions.size:
        return positions
    before = np.concatenate(([-1], positions[:-1]))
    far = np.flatnonzero(positions - before > MAX_GAP)
    if not far.size:
        return positions
    between = [np.arange(before[i] + MAX_GAP, positions[i], MAX_GAP) for i in far]
    return np.sort(np.concatenate([positions, *between]))


def _words(tensor: torch.Tensor) -> torch.Tensor:
    """Return a flat integer view of the tensor's bits."""
    return tensor.reshape(-1).view(WORD_TYPES[tensor.element_size()])


def _from_bytes(array: np.ndarray[Any, Any], dtype: torch.dtype) -> torch.Tensor:
    """Return a flat view of bytes as numbers of `dtype`."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array.view(f"i{dtype.itemsize}")).view(dtype)
