"""Compiling a program, which runs none of it."""

from __future__ import annotations

import marshal
import warnings
from dataclasses import dataclass
from typing import Any

SOLUTION = "<solution>"
_MAX_CODE = 1 << 20


@dataclass(frozen=True, slots=True)
class Compiled:
    """`code`: marshalled, in hexadecimal; `error`: message, line and column; neither if only the program's own guest
    can tell, under its limits: errors that depend on the process (how deep nesting may go), and what costs too much.
    """

    code: str | None = None
    error: dict[str, Any] | None = None


def compiled(source: str) -> Compiled:
    """See `Compiled`."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            code = marshal.dumps(compile(source, SOLUTION, "exec", dont_inherit=True))
    except SyntaxError as error:
        return Compiled(error={"message": str(error.msg), "line": error.lineno, "column": error.offset})
    except (ValueError, RecursionError, MemoryError, OverflowError):
        return Compiled()
    return Compiled(code=code.hex()) if len(code) <= _MAX_CODE else Compiled()
