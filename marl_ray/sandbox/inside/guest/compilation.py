"""Compiling a program, which runs none of it, and its code as the judge passes it on."""

from __future__ import annotations

import marshal
import types
import warnings

from ..protocol.encoding import Wire

SOLUTION = "<solution>"
_MAX_CODE = 1 << 20


def compiled(source: str) -> list[Wire]:
    """The answer to `compile`: null instead of code where only the program's own guest can tell."""
    code = b""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            code = marshal.dumps(compile(source, SOLUTION, "exec", dont_inherit=True))
    except SyntaxError as error:
        return ["syntax", str(error.msg), error.lineno, error.offset]
    except (ValueError, RecursionError, MemoryError, OverflowError):
        pass
    return ["ok", code.hex() if 0 < len(code) <= _MAX_CODE else None]


def code_of(program: str, is_code: bool) -> types.CodeType | list[Wire]:
    """The code of a program as the judge sends it, source or marshalled; or the `syntax` answer."""
    try:
        if is_code:
            code: types.CodeType = marshal.loads(bytes.fromhex(program))
        else:
            code = compile(program, SOLUTION, "exec", dont_inherit=True)
    except SyntaxError as error:
        return ["syntax", str(error.msg), error.lineno, error.offset]
    except (ValueError, RecursionError, MemoryError, OverflowError) as error:  # null bytes, deep nesting
        return ["syntax", str(error) or "too deeply nested", None, None]
    return code
