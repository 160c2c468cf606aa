"""Small text helpers for messages."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def pluralize(number: int, noun: str) -> str:
    """Return `1 agent`, `2 agents`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def excerpt(error: object, limit: int = 300) -> str:
    """Return at most `limit` characters of a message from another library, on one line."""
    return " ".join(str(error).split())[:limit]


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return `: did you mean X?`, or nothing if no known word is similar."""
    matches = difflib.get_close_matches(word, list(known), n=1)
    return f": did you mean {matches[0]}?" if matches else ""
