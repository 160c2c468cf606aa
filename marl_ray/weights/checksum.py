"""A checksum of named weights, equal on the sender and on whoever received the same bits.

It is a sum over tensors, so it can be taken while they stream past in any order, on CPU or GPU alike.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator

import torch

MODULUS = 2**61 - 1
WORD_TYPES = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def tensor_checksum(name: str, tensor: torch.Tensor) -> int:
    """Of one tensor's name, shape, dtype and bits.

    Odd elements weigh three times, so that swapped neighbours show; the sums wrap at 64 bits.
    """
    words = tensor.detach().contiguous().reshape(-1).view(WORD_TYPES[tensor.element_size()])
    total = int(words.sum(dtype=torch.int64)) + 2 * int(words[1::2].sum(dtype=torch.int64))
    header = zlib.crc32(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
    return (total * 2 + 1) * (header + 1) % MODULUS


class Checksum:
    """Accumulates the checksum of tensors as they pass through `watch`."""

    def __init__(self) -> None:
        self.value = 0

    def watch(self, weights: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield `weights` unchanged, adding each to the sum."""
        for name, tensor in weights:
            self.value = (self.value + tensor_checksum(name, tensor)) % MODULUS
            yield name, tensor
