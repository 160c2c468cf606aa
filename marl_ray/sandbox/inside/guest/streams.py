"""The three standard streams of a guest."""

from __future__ import annotations

import io
import os
import sys
from typing import Any


class _BoundedOutput(io.RawIOBase):
    """Standard output that goes on accepting text and drops what is beyond the limit.

    The file size limit would make `print` fail in a chatty program that is otherwise right.
    """

    def __init__(self, descriptor: int, left: list[int]) -> None:
        self._descriptor = descriptor
        self.left = left

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def write(self, data: Any) -> int:
        size = len(data)
        if self.left[0] > 0:
            self.left[0] -= os.write(self._descriptor, data[: self.left[0]])
        return size


class Streams:
    """The three standard streams of a guest, made before the fork on descriptors that change under them."""

    def __init__(self) -> None:
        self._left = [0]
        """How many bytes the two may write: together, or standard output alone where they are apart."""
        self._errors = _BoundedOutput(2, self._left)
        for name, raw_output in (("stdout", _BoundedOutput(1, self._left)), ("stderr", self._errors)):
            buffered = io.BufferedWriter(raw_output, 8192)
            stream = io.TextIOWrapper(buffered, encoding="utf-8", errors="backslashreplace", newline="\n")
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)
        raw = io.BufferedReader(io.FileIO(0, closefd=False))
        sys.stdin = io.TextIOWrapper(raw, encoding="utf-8", errors="replace", newline="\n")
        sys.__stdin__ = sys.stdin  # type: ignore[misc]

    def allow(self, max_output: int, *, apart: bool) -> None:
        """`apart`: standard error goes elsewhere, so it takes nothing of what standard output may hold."""
        self._left[0] = max_output
        if apart:
            self._errors.left = [max_output]
