"""Text of a guest, made fit for reports."""

from __future__ import annotations

from typing import Any

from .evaluation_context import GuestFault


def clean_text(text: Any, limit: int = 500) -> str:
    """Guest text fit for logs and prompts: no surrogates, no control or escape characters, bounded."""
    if not isinstance(text, str):
        return ""
    text = text[:limit].encode("utf-8", "replace").decode()
    return "".join(c if c.isprintable() or c in "\n\t" else "?" for c in text)


def text_of(error: BaseException) -> str:
    """What an exception says; nothing if it cannot (its arguments may be objects of the program, which may answer with
    any exception).
    """
    try:
        return str(error)
    except GuestFault:
        raise
    except BaseException:
        return ""


def clean_line(line: Any) -> int | None:
    return line if type(line) is int and 0 < line < 1 << 31 else None
