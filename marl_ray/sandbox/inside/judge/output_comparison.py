"""Standard input for a guest, and its output: handed over, and compared.

Output is compared as APPS (Hendrycks et al., 2021) and LiveCodeBench (Jain et al., 2024) do: line by line, without
blanks at the ends of lines and of the whole; a line word by word, numbers by their value (0.50 is 0.5), and those that
are expected with a fraction or an exponent up to a relative difference of 1e-5. APPS takes lines and words in any order
too, which is not done here: it would pass what has only the right words.
"""

from __future__ import annotations

import os
import re
from decimal import Context, Decimal

from ..isolation import process
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
    return [line.strip() for line in text.strip().split("\n")]


def same(got: list[str], wanted: list[str]) -> bool:
    """Whether these lines are what is expected."""
    return len(got) == len(wanted) and all(map(_same_line, got, wanted))


def first_difference(got: list[str], wanted: list[str]) -> str:
    for number, (left, right) in enumerate(zip(got, wanted, strict=False), 1):
        if not _same_line(left, right):
            return f"line {number}: got {clean_text(left, 160)!r}, expected {clean_text(right, 160)!r}"
    return f"got {len(got)} lines, expected {len(wanted)}"


_NUMBER = re.compile(r"[+-]?(?:\d+(?P<point>\.\d*)?|(?P<bare>\.\d+))(?P<exponent>[eE][+-]?\d{1,3})?", re.ASCII)
_LONGEST_NUMBER = 400
_ARITHMETIC = Context(prec=50)
"""Of our own: what a test does to the thread's changes nothing here."""
_RELATIVE, _ABSOLUTE = Decimal("1e-5"), Decimal("1e-8")


def _same_line(got: str, wanted: str) -> bool:
    if got == wanted:
        return True
    left, right = got.split(), wanted.split()
    return len(left) == len(right) and all(map(_same_word, left, right))


def _same_word(got: str, wanted: str) -> bool:
    if got == wanted:
        return True
    expected = _number(wanted)
    if expected is None or _number(got) is None:
        return False
    number, value = Decimal(got), Decimal(wanted)
    if not (expected["point"] or expected["bare"] or expected["exponent"]):
        return number == value
    room = _ARITHMETIC.add(_ABSOLUTE, _ARITHMETIC.multiply(_RELATIVE, abs(value)))
    return abs(_ARITHMETIC.subtract(number, value)) <= room


def _number(word: str) -> re.Match[str] | None:
    """Words that Decimal takes and that are no numbers (`nan`, `inf`) are compared as words."""
    return _NUMBER.fullmatch(word) if len(word) <= _LONGEST_NUMBER else None
