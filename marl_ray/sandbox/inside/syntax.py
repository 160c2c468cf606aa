"""What can be said about a program without running it: that it does not compile."""

from __future__ import annotations

import warnings
from typing import Any

from .remote import clean_line, clean_text

_MAX_CHARACTERS = 1 << 16


def diagnose(source: str) -> dict[str, Any] | None:
    """Message, line and column of the error; None if `source` compiles, or if only a guest can tell.

    Compiling runs none of the program. A source that could cost much, and errors that depend on the process (how
    deep nesting may go), are left to a guest under its limits.
    """
    if len(source) > _MAX_CHARACTERS:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(source, "solution", "exec", dont_inherit=True)
    except SyntaxError as error:
        return {
            "message": clean_text(error.msg),
            "line": clean_line(error.lineno),
            "column": clean_line(error.offset),
        }
    except (ValueError, RecursionError, MemoryError, OverflowError):
        return None
    return None
