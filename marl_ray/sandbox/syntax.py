"""Programs that do not compile need no process: their report is written without starting one."""

from __future__ import annotations

import warnings

from .inside.remote import clean_line, clean_text
from .report import SyntaxDiagnosis

_MAX_CHARACTERS = 1 << 16


def diagnose(source: str) -> SyntaxDiagnosis | None:
    """Why `source` does not compile; None if it does, or if only a guest can tell.

    Compiling runs none of the program. What could cost much (a long source) or depends on the process (how deep
    nesting may go) is left to the guest, under its limits.
    """
    if len(source) > _MAX_CHARACTERS:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(source, "solution", "exec", dont_inherit=True)
    except SyntaxError as error:
        return SyntaxDiagnosis(clean_text(error.msg), clean_line(error.lineno), clean_line(error.offset))
    except (ValueError, RecursionError, MemoryError, OverflowError):
        return None
    return None
