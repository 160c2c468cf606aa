"""What a publication is made of where weights travel as messages: whole tensors, or what has changed in them.

With numbers of 16 bits an optimizer step moves few weights far enough to change them: a step of 1e-6 is nothing beside
the distance of two bfloat16 numbers at 0.02, which is 1e-4. Sender and receivers both keep what was sent last (`Snapshot`),
and of a tensor in which less than half has changed only positions and new values are sent.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from marl_ray.weights.checksum import WORD_TYPES

LONGEST_GAP = 2**16 - 1
"""Between two values of a patch, so that a gap is a number of 16 bits."""


@dataclass(frozen=True, slots=True)
class TensorDelta:
    """One tensor of a publication. `values` are its bytes; in a patch, those of the values that stand `gaps` (uint16,
    each at least 1) apart, the first one counted from before the tensor. Of these a few may be what they were, where a
    gap would be too long."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    values: np.ndarray[Any, Any]
    gaps: np.ndarray[Any, Any] | None = None

    @property
    def nbytes(self) -> int:
        """On the wire."""
        return self.values.nbytes + (0 if self.gaps is None else self.gaps.nbytes)


@dataclass(frozen=True, slots=True)
class WeightUpdate:
    """A publication. With a `base`, which is the checksum of weights, its patches change those and no others. WeightReceivers
    `keep` what it makes, to be the next one's base."""

    pieces: list[TensorDelta]
    base: int | None = None
    keep: bool = False

    @property
    def nbytes(self) -> int:
        """Of its weights."""
        return sum(piece.nbytes for piece in self.pieces)


class Snapshot:
    """Weights as they were published last, in the wire's dtype, in the host's memory: on either side one copy.

    `checksum` is theirs, which whoever writes them sets when all are written; None before. `changed` is the share of
    values that the last `rewritten` found changed.
    """

    def __init__(self) -> None:
        self.checksum: int | None = None
        self.changed = 1.0
        self._tensors: dict[str, torch.Tensor] = {}

    def kept(self, weights: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
        """Copies of the weights, which are the base afterwards."""
        self.checksum, self._tensors = None, {}
        for name, tensor in weights:
            self._tensors[name] = tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
            yield name, self._tensors[name]

    def rewritten(self, weights: Iterable[tuple[str, torch.Tensor]]) -> Iterator[TensorDelta]:
        """The pieces that make these weights of the base, which is these weights afterwards. They are views of it."""
        self.checksum = None
        changed = values = 0
        for name, tensor in weights:
            piece, positions = _change(name, self._tensors[name], tensor.detach().to("cpu"))
            changed, values = changed + positions, values + tensor.numel()
            yield piece
        self.changed = changed / values if values else 0.0

    def applied(self, pieces: Iterable[TensorDelta]) -> Iterator[tuple[str, torch.Tensor]]:
        """The weights that the pieces make of the base, which is these weights afterwards."""
        self.checksum = None
        for piece in pieces:
            tensor = self._tensors[piece.name]
            if piece.gaps is None:
                tensor.copy_(unpacked(piece))
            else:
                positions = torch.from_numpy(np.cumsum(piece.gaps, dtype=np.int64) - 1)
                words = _words(tensor)
                words[positions] = _readable(piece.values, words.dtype)
            yield piece.name, tensor


def whole(name: str, tensor: torch.Tensor) -> TensorDelta:
    """All of a contiguous tensor in the host's memory."""
    values = _words(tensor).numpy().view(np.uint8)  # torch itself cannot view empty tensors so
    return TensorDelta(name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), values)


def unpacked(piece: TensorDelta) -> torch.Tensor:
    """A view of a whole tensor's (read-only) bytes; loading copies it into the model."""
    return _readable(piece.values, getattr(torch, piece.dtype)).reshape(piece.shape)


def _change(name: str, before: torch.Tensor, after: torch.Tensor) -> tuple[TensorDelta, int]:
    """What is smaller, all of `after` or where and what it differs from `before`, which is `after` afterwards; and in
    how many values it differs."""
    old, new = _words(before), _words(after.contiguous())
    positions = (old != new).nonzero().reshape(-1).numpy()
    old.copy_(new)
    if positions.size * (2 + new.element_size()) >= new.numel() * new.element_size():
        return whole(name, before), positions.size
    close = _close_together(positions)
    values = new[torch.from_numpy(close)].numpy().view(np.uint8)
    gaps = np.diff(close, prepend=-1).astype(np.uint16)
    return replace(whole(name, before), values=values, gaps=gaps), positions.size


def _close_together(positions: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Ascending positions, with others between those that are further apart than LONGEST_GAP."""
    before = np.concatenate(([-1], positions[:-1])) if positions.size else positions
    far = np.flatnonzero(positions - before > LONGEST_GAP)
    between = [np.arange(before[i] + LONGEST_GAP, positions[i], LONGEST_GAP) for i in far]
    return np.sort(np.concatenate([positions, *between])) if between else positions


def _words(tensor: torch.Tensor) -> torch.Tensor:
    """A flat view of its bits."""
    return tensor.reshape(-1).view(WORD_TYPES[tensor.element_size()])


def _readable(array: np.ndarray[Any, Any], dtype: torch.dtype) -> torch.Tensor:
    """A flat view of its bytes."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array.view(f"i{dtype.itemsize}")).view(dtype)
