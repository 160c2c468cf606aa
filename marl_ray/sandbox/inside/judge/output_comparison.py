"""Standard input of a guest, and comparison of its standard output with the expected output.

Output is compared as by APPS (Hendrycks et al., 2021) and LiveCodeBench (Jain et al., 2024), line by line and word by
word (docs/explanation/sandbox.md). APPS also accepts lines and words in any order; this comparison does not, since
output with merely the right words would pass.
"""

from __future__ import annotations

import os
import re
from decimal import Context, Decimal

from ..isolation import process
from .remote_errors import clean_text


def input_file(text: str) -> int:
    """Return a descriptor from which `text` can be read, and which cannot be written to."""
    descriptor = process.anonymous_file("input")
    data = text.encode("utf-8", "replace")
    while data:
        data = data[os.write(descriptor, data) :]
    os.lseek(descriptor, 0, os.SEEK_SET)
    process.seal(descriptor)
    return descriptor


def read_output(descriptor: int, limit: int) -> str:
    return os.pread(descriptor, limit, 0).decode("utf-8", "replace").replace("\0", "?")


def is_full(descriptor: int, limit: int) -> bool:
    """Return whether the output reached the limit, so that more may have been dropped."""
    return os.fstat(descriptor).st_size >= limit


def split_lines(text: str) -> list[str]:
    return [line.strip() for line in text.strip().split("\n")]


def outputs_match(actual: list[str], expected: list[str]) -> bool:
    """Return whether the lines of an output are the expected lines."""
    return len(actual) == len(expected) and all(map(_lines_match, actual, expected))


def first_difference(actual: list[str], expected: list[str]) -> str:
    for number, (left, right) in enumerate(zip(actual, expected, strict=False), 1):
        if not _lines_match(left, right):
            return f"line {number}: got {clean_text(left, 160)!r}, expected {clean_text(right, 160)!r}"
    return f"got {len(actual)} lines, expected {len(expected)}"


_NUMBER = re.compile(r"[+-]?(?:\d+(?P<point>\.\d*)?|(?P<bare>\.\d+))(?P<exponent>[eE][+-]?\d{1,3})?", re.ASCII)
_LEADING_ZERO = re.compile(r"[+-]?0[0-9]")
"""Start of an expected number that is compared as text: `007` is padded on purpose."""
_MAX_DIGITS = 400
_ARITHMETIC = Context(prec=50)
"""A context of its own, so that changes of the thread's context by a test have no effect here."""
_RELATIVE = Decimal("1e-5")
_ABSOLUTE = Decimal("1e-8")


def _lines_match(actual: str, expected: str) -> bool:
    if actual == expected:
        return True
    left = actual.split()
    right = expected.split()
    return len(left) == len(right) and all(map(_words_match, left, right))


def _words_match(actual: str, expected: str) -> bool:
    if actual == expected:
        return True
    parts = _match_number(expected)
    if parts is None or _LEADING_ZERO.match(expected) or _match_number(actual) is None:
        return False
    number = Decimal(actual)
    value = Decimal(expected)
    if not (parts["point"] or parts["bare"] or parts["exponent"]):
        return number == value  # an integer is exact
    tolerance = _ARITHMETIC.add(_ABSOLUTE, _ARITHMETIC.multiply(_RELATIVE, abs(value)))
    return abs(_ARITHMETIC.subtract(number, value)) <= tolerance


def _match_number(word: str) -> re.Match[str] | None:
    """Match a number. `nan` and `inf`, which Decimal accepts too, are compared as words."""
    return _NUMBER.fullmatch(word) if len(word) <= _MAX_DIGITS else None
