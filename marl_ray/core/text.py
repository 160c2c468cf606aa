"""Small helpers for texts."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable
from typing import Any


def pluralize(number: int, noun: str) -> str:
    """Return `1 agent`, `2 agents`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def excerpt(error: object, limit: int = 300) -> str:
    """Return at most `limit` characters of a message from another library, on one line."""
    return " ".join(str(error).split())[:limit]


def json_or(text: str | bytes, default: Any) -> Any:
    """Return the value of a JSON text, which other programs or models have written, or `default` if the text is no
    JSON, is not in UTF-8, has halves of characters, or is nested too deeply.

    Example:
        >>> json_or('[1]', None), json_or('[1', None)
        ([1], None)
    """
    try:
        if isinstance(text, bytes):
            text = text.decode("utf-8")
        value = json.loads(text)
        json.dumps(value, ensure_ascii=False).encode()  # rejects halves of characters
        return value
    except (ValueError, RecursionError):
        return default


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return `: did you mean X?`, or nothing if no known word is similar."""
    matches = difflib.get_close_matches(word, list(known), n=1)
    if not matches:
        return ""
    return f": did you mean {matches[0]}?"


def short_repr(value: object, length: int) -> str:
    """Return the first `length` characters of a value's representation.

    Example:
        >>> short_repr("abcdef", 4), short_repr(10**5000, 30)
        ("'abc", 'a value that cannot be shown')
    """
    try:
        return repr(value)[:length]
    except ValueError:  # Python converts no integer of more than 4,300 digits
        return "a value that cannot be shown"[:length]
