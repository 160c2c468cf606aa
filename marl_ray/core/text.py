"""Small things said to people."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def pluralize(number: int, noun: str) -> str:
    """`1 agent`, `2 agents`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`: did you mean X?`, or nothing where nothing is near."""
    near = difflib.get_close_matches(word, list(known), n=1)
    return f": did you mean {near[0]}?" if near else ""
