"""Standard input for a guest, and its output: handed over and compared as text."""

from __future__ import annotations

import os

from ..wall import process
from .text import clean_text


def input_file(text: str) -> int:
    """A descriptor from which `text` can be read, and to which nothing can be written."""
    descriptor = process.anonymous_file("input")
    data = text.encode("utf-8", "replace")
    while data:
        data = data[os.write(descriptor, data) :]
    os.lseek(descriptor, 0, os.SEEK_SET)
    process.seal(descriptor)
    return descriptor


def read_output(descriptor: int, limit: int) -> str:
    text = os.pread(descriptor, limit, 0).decode("utf-8", "replace")
    return text.replace("\0", "?")


def is_full(descriptor: int, limit: int) -> bool:
    """Whether as much was printed as is kept, so that more may have been dropped."""
    return os.fstat(descriptor).st_size >= limit


def lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().split("\n")]


def first_difference(got: list[str], wanted: list[str]) -> str:
    for number, (left, right) in enumerate(zip(got, wanted, strict=False), 1):
        if left != right:
            return f"line {number}: got {clean_text(left, 160)!r}, expected {clean_text(right, 160)!r}"
    return f"got {len(got)} lines, expected {len(wanted)}"
