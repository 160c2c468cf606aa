"""A guest as a script process: its arguments, its standard streams, and how it exits."""

from __future__ import annotations

import atexit
import gc
import io
import os
import sys
import threading
from typing import Any, NoReturn

ARGV = ("solution.py",)
"""`sys.argv` of a program; its first element is the module's `__file__`."""


class _BoundedOutput(io.RawIOBase):
    """Output stream that drops all text beyond its limit: a file size limit would make `print` fail in a program."""

    mode = "wb"

    def __init__(self, descriptor: int, name: str, remaining: list[int]) -> None:
        self._descriptor = descriptor
        self.name = name
        self.remaining = remaining

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def write(self, data: Any) -> int:
        size = len(data)
        if self.remaining[0] > 0:
            self.remaining[0] -= os.write(self._descriptor, data[: self.remaining[0]])
        return size


class StandardStreams:
    """Standard streams of a guest, made before the fork on descriptors that are replaced afterwards."""

    def __init__(self) -> None:
        self._remaining = [0]
        """Bytes that both streams may still write together, or standard output alone if they are separate."""
        self._errors = _BoundedOutput(2, "<stderr>", self._remaining)
        output = _BoundedOutput(1, "<stdout>", self._remaining)
        for name, raw_output in (("stdout", output), ("stderr", self._errors)):
            buffered = io.BufferedWriter(raw_output, 8192)
            stream: Any = io.TextIOWrapper(buffered, encoding="utf-8", errors="backslashreplace", newline="\n")
            stream.mode = "w"  # names and modes as in CPython: templates for fast input read them
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)
        raw: Any = io.FileIO(0, closefd=False)
        raw.name = "<stdin>"
        stdin: Any = io.TextIOWrapper(io.BufferedReader(raw), encoding="utf-8", errors="replace", newline="\n")
        stdin.mode = "r"
        sys.stdin = sys.__stdin__ = stdin  # type: ignore[misc]

    def set_limit(self, max_output: int, *, separate_stderr: bool) -> None:
        """Set the output limit in bytes. A separate standard error has a limit of its own."""
        self._remaining[0] = max_output
        if separate_stderr:
            self._errors.remaining = [max_output]


def exit_status(error: BaseException) -> int:
    """Return the exit status for an uncaught exception, after reporting it on standard error."""
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


def exit_like_script(names: dict[str, Any], status: int) -> NoReturn:
    """Exit like a script whose module has these names.

    As in CPython's `Py_RunMain` and `Py_FinalizeEx`, threads are joined, `atexit` functions run, the module's names are
    cleared (which flushes open files and calls `__del__`), and the standard streams are flushed. The interpreter itself
    is not finalised: that is invisible and costs more than most programs.
    """
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        _flush()
        # In the order of CPython's _PyModule_ClearDict.
        for private in (True, False):
            for name in list(names):
                if name != "__builtins__" and private == (name[:1] == "_" != name[1:2]):
                    names[name] = None
        gc.collect()
        _flush()
    finally:
        os._exit(status)


def _flush() -> None:
    # A program that replaces `sys.stdout` may write to `sys.__stdout__` at its end.
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        try:
            stream.flush()  # type: ignore[union-attr]
        except (OSError, ValueError, AttributeError):  # closed or replaced by the program
            pass
