"""Compiling a program in the judge: what does not compile needs no guest, and a guest need not compile again.

Compiling runs none of the program. What could cost much (a long source; `finally`, whose block is copied to every
way out of it, twice more for each level of nesting) and errors that depend on the process (how deep nesting may go)
are left to the guest, under its limits.
"""

from __future__ import annotations

import marshal
import warnings
from dataclasses import dataclass
from typing import Any

from .remote import clean_line, clean_text

SOLUTION = "<solution>"
_MAX_CHARACTERS = 1 << 16
_MAX_CODE = 1 << 20


@dataclass(frozen=True, slots=True)
class Compiled:
    """`code`: marshalled, in hexadecimal; `error`: message, line and column; neither if only a guest can tell."""

    code: str | None = None
    error: dict[str, Any] | None = None


def compiled(source: str) -> Compiled:
    """See the module."""
    if len(source) > _MAX_CHARACTERS or "finally" in source:
        return Compiled()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            code = marshal.dumps(compile(source, SOLUTION, "exec", dont_inherit=True))
    except SyntaxError as error:
        found = {
            "message": clean_text(error.msg),
            "line": clean_line(error.lineno),
            "column": clean_line(error.offset),
        }
        return Compiled(error=found)
    except (ValueError, RecursionError, MemoryError, OverflowError):
        return Compiled()
    return Compiled(code=code.hex()) if len(code) <= _MAX_CODE else Compiled()
