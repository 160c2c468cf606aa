"""A program run as a script: how it ends, and with which status.

As in CPython's `Py_RunMain` and `Py_FinalizeEx`: threads are waited for, `atexit` functions run, what the module's
names hold goes (open files are flushed by that, `__del__` is called), the standard streams are flushed. Only then is
the output compared. The interpreter itself is not taken apart, which nobody would see and which costs more than
most programs.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys
import threading
from typing import Any, NoReturn

ARGV = ("solution.py",)
"""What a program finds as `sys.argv`, and first of it as its `__file__`."""


def exit_status(error: BaseException) -> int:
    """The status after an exception that nobody caught, which is told to standard error."""
    if not isinstance(error, SystemExit):
        sys.excepthook(type(error), error, error.__traceback__)
        return 1
    code = error.code
    if code is None:
        return 0
    if isinstance(code, int):
        return int(code) & 0xFF
    print(code, file=sys.stderr)
    return 1


def end(names: dict[str, Any], status: int) -> NoReturn:
    """End this process as a script ends whose module has these names."""
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        _flush()
        # In this order: see _PyModule_ClearDict.
        for private in (True, False):
            for name in list(names):
                if name != "__builtins__" and private == (name[:1] == "_" != name[1:2]):
                    names[name] = None
        gc.collect()
        _flush()
    finally:
        os._exit(status)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):  # closed or replaced by the program
            pass
