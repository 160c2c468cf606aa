"""The guest: one process per program, and the only one in which code of a program runs.

It answers the judge's requests, one at a time, over descriptor 3. Nothing in here is relied on: the program
shares the interpreter with this module and may rewrite it at will. What it can reach that way is its own
death or a wrong answer. Requests are [nonce, operation, ...], answers [nonce, kind, ...]:

| request | answer |
|---|---|
| `compile` source | `ok` marshalled code in hexadecimal, or null · `syntax` message, line, column |
| `load` program, marshalled?, names | `ok` {name: plain value} · `syntax` message, line, column |
| `script` program, marshalled? | `ok` null, `raise` or `syntax`; then the process ends as a script does |
| `call` target, attribute, arguments, keywords | `ok` value, arguments afterwards or null |
| `get` target, attribute | `ok` value |
| `set` target, attribute, value | `ok` null |
| `operate` function of `operator` or builtin, arguments | `ok` value |
| `next` target, most | `ok` values, whether that was the end |
| `test` source | `ok` null, or `raise` |
| `define` source, override | `ok` null: code whose names the following tests share |
| `unit` class, method | `ok` [status, type, message, line] |

`raise` carries type name, message, line, and the names of its builtin base classes. A target is a name of the
program or the number of an object it has returned.
"""

from __future__ import annotations

import builtins
import io
import marshal
import operator
import os
import socket
import sys
import types
from collections.abc import Callable
from typing import Any

from . import frames, script
from .codec import Unsupported, Wire, decode, encode
from .compilation import SOLUTION, compiled

_MUTABLE = (list, dict, set, bytearray)


class ResultTooLarge(Exception):
    """A program returned more than a reply may hold."""


class _BoundedOutput(io.RawIOBase):
    """Standard output that goes on accepting text and drops what is beyond the limit.

    The file size limit would make `print` fail in a chatty program that is otherwise right.
    """

    def __init__(self, descriptor: int, left: list[int]) -> None:
        self._descriptor = descriptor
        self.left = left

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def write(self, data: Any) -> int:
        size = len(data)
        if self.left[0] > 0:
            self.left[0] -= os.write(self._descriptor, data[: self.left[0]])
        return size


class Streams:
    """The three standard streams of a guest, made before the fork on descriptors that change under them."""

    def __init__(self) -> None:
        self._left = [0]
        """How many bytes the two may write: together, or standard output alone where they are apart."""
        self._errors = _BoundedOutput(2, self._left)
        for name, raw_output in (("stdout", _BoundedOutput(1, self._left)), ("stderr", self._errors)):
            buffered = io.BufferedWriter(raw_output, 8192)
            stream = io.TextIOWrapper(buffered, encoding="utf-8", errors="backslashreplace", newline="\n")
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)
        raw = io.BufferedReader(io.FileIO(0, closefd=False))
        sys.stdin = io.TextIOWrapper(raw, encoding="utf-8", errors="replace", newline="\n")
        sys.__stdin__ = sys.stdin  # type: ignore[misc]

    def allow(self, max_output: int, *, apart: bool) -> None:
        """`apart`: standard error goes elsewhere, so it takes nothing of what standard output may hold."""
        self._left[0] = max_output
        if apart:
            self._errors.left = [max_output]


def _line_of(traceback: types.TracebackType | None) -> int | None:
    """The innermost line of the program in a traceback."""
    line = None
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename == SOLUTION:
            line = traceback.tb_lineno
        traceback = traceback.tb_next
    return line


def describe_error(error: BaseException) -> list[Wire]:
    """[type name, message, line, names of builtin base classes], whatever the exception's own methods do."""
    try:
        message = str(error)[:500]
    except BaseException:  # a hostile or broken __str__ may raise anything
        message = "<the exception cannot be printed>"
    kind = type(error)
    bases = [base.__name__ for base in kind.__mro__ if base.__module__ == "builtins"]
    return [kind.__name__, message, _line_of(error.__traceback__), bases[:6]]


def _compile(source: str) -> list[Wire]:
    result = compiled(source)
    if result.error is not None:
        return ["syntax", result.error["message"], result.error["line"], result.error["column"]]
    return ["ok", result.code]


def _code(program: str, is_code: bool) -> types.CodeType | list[Wire]:
    """The code of a program as the judge sends it, or the `syntax` answer."""
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


class Guest:
    """Serves one judge, over an open descriptor."""

    def __init__(self, descriptor: int = 3) -> None:
        self._descriptor = descriptor
        self.max_reply = 1 << 20
        self._module = types.ModuleType("solution")
        self._module.__file__ = script.ARGV[0]
        sys.modules["solution"] = self._module
        self._objects: list[Any] = []
        self._numbers: dict[int, int] = {}
        self._test_names: dict[str, Any] = {}
        self._exit_status: int | None = None
        self._operations: dict[str, Callable[..., list[Wire]]] = {
            "compile": _compile,
            "load": self._load,
            "script": self._script,
            "call": self._call,
            "get": self._get,
            "set": self._set,
            "operate": self._operate,
            "next": self._next,
            "test": self._test,
            "define": self._define,
            "unit": self._unit,
        }

    def recv(self, size: int, /) -> bytes:
        """Bytes from the judge, without the detour over a socket object."""
        return os.read(self._descriptor, size)

    def serve(self, most: int = -1) -> None:
        """Answer requests until the connection closes (frames.Closed), or `most` of them."""
        reader = frames.Reader(self)
        while most:
            most -= 1
            nonce, operation, *arguments = reader.message()
            try:
                answer = self._operations[operation](*arguments)
            except BaseException as error:  # SystemExit and KeyboardInterrupt are results like any other
                answer = ["raise", *describe_error(error)]
            self._answer(nonce, answer)
            if self._exit_status is not None:
                script.end(self._module.__dict__, self._exit_status)

    def _answer(self, nonce: str, answer: list[Wire]) -> None:
        try:
            frame = frames.pack([nonce, *answer])
            if len(frame) > self.max_reply:
                raise ResultTooLarge(f"the result takes {len(frame)} bytes, more than {self.max_reply}")
        except BaseException as error:
            frame = frames.pack([nonce, "raise", *describe_error(error)])
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except BaseException:  # the program may have closed or replaced it
                pass
        while frame:
            frame = frame[os.write(self._descriptor, frame) :]

    # --- objects that stay here ---

    def _refer(self, value: Any) -> Wire:
        number = self._numbers.get(id(value))
        if number is None:
            number = self._numbers[id(value)] = len(self._objects)
            self._objects.append(value)  # keeps it alive, and so its id its own
        return [number, type(value).__name__, hasattr(type(value), "__next__")]

    def _resolve(self, payload: Wire) -> Any:
        return self._target(payload[0])

    def _target(self, target: str | int) -> Any:
        if isinstance(target, int):
            return self._objects[target]
        try:
            return self._module.__dict__[target]
        except KeyError:
            raise NameError(f"name {target!r} is not defined") from None

    # --- operations ---

    def _load(self, program: str, is_code: bool, names: list[str]) -> list[Wire]:
        code = _code(program, is_code)
        if not isinstance(code, types.CodeType):
            return code
        namespace = self._module.__dict__
        exec(code, namespace)
        plain = {}
        for wanted in names:
            value = namespace.get(wanted)
            if wanted in namespace and not callable(value):
                try:
                    plain[wanted] = encode(value)
                except Unsupported:
                    pass
        return ["ok", plain]

    def _script(self, program: str, is_code: bool) -> list[Wire]:
        code = _code(program, is_code)
        if not isinstance(code, types.CodeType):
            return code
        self._module.__name__ = "__main__"
        sys.modules["__main__"] = self._module
        self._exit_status = 0
        try:
            exec(code, self._module.__dict__)
        except BaseException as error:
            self._exit_status = script.exit_status(error)
            return ["raise", *describe_error(error)]
        return ["ok", None]

    def _call(self, target: str | int, attribute: str | None, arguments: Wire, keywords: Wire) -> list[Wire]:
        function = self._target(target)
        if attribute is not None:
            function = getattr(function, attribute)
        values = decode(arguments, self._resolve)
        result = function(*values, **decode(keywords, self._resolve))
        after = None
        if any(type(value) in _MUTABLE for value in values):
            after = encode(values, self._refer)
            if after == arguments:
                after = None
        return ["ok", encode(result, self._refer), after]

    def _get(self, target: str | int, attribute: str) -> list[Wire]:
        return ["ok", encode(getattr(self._target(target), attribute), self._refer)]

    def _set(self, target: str | int, attribute: str, value: Wire) -> list[Wire]:
        setattr(self._target(target), attribute, decode(value, self._resolve))
        return ["ok", None]

    def _operate(self, function: str, arguments: Wire) -> list[Wire]:
        perform = getattr(operator, function, None) or getattr(builtins, function)
        return ["ok", encode(perform(*decode(arguments, self._resolve)), self._refer)]

    def _next(self, target: str | int, most: int) -> list[Wire]:
        iterator = self._target(target)
        values: list[Wire] = []
        for _ in range(most):
            try:
                values.append(encode(next(iterator), self._refer))
            except StopIteration:
                return ["ok", values, True]
        return ["ok", values, False]

    # --- tests that cannot be evaluated outside ---

    def _names(self) -> dict[str, Any]:
        if not self._test_names:
            self._test_names = {"__name__": "tests", **self._module.__dict__}
        return self._test_names

    def _define(self, source: str, override: bool) -> list[Wire]:
        """Run test code. With `override` its names win over the program's, else it only fills in missing
        ones.
        """
        names = self._names()
        code = compile(source, "<tests>", "exec", dont_inherit=True)
        if override:
            exec(code, names)
            return ["ok", None]
        own = dict(names)
        exec(code, own)
        for name, value in own.items():
            names.setdefault(name, value)
        return ["ok", None]

    def _test(self, source: str) -> list[Wire]:
        exec(compile(source, "<test>", "exec", dont_inherit=True), self._names())
        return ["ok", None]

    def _unit(self, class_name: str, method: str) -> list[Wire]:
        import unittest

        result = unittest.TestResult()
        unittest.TestSuite([self._names()[class_name](method)]).run(result)
        problems = [("fail", trace) for _, trace in result.failures]
        problems += [("error", trace) for _, trace in result.errors]
        problems += [("fail", "unexpected success") for _ in result.unexpectedSuccesses]
        if problems:
            status, trace = problems[0]
            return ["ok", [status, *_ending(trace)]]
        if result.skipped:
            return ["ok", ["skipped", "SkipTest", result.skipped[0][1]]]
        return ["ok", ["pass", None, None]]


def _ending(trace: str) -> tuple[str, str]:
    """Type and message at the end of a formatted traceback; the message may take several lines."""
    lines = trace.rpartition("Traceback (most recent call last):\n")[2].rstrip().splitlines()
    start = next((number for number, line in enumerate(lines) if not line.startswith(" ")), 0)
    kind, _, message = "\n".join(lines[start:]).partition(": ")
    return kind.rpartition(".")[2], message or kind


_REHEARSAL = """
def f(x, y=None):
    if x is None:
        raise ValueError("none")
    return [x, {x: y}, (x, y), str(x)]
"""


def rehearse() -> None:
    """Go through the usual requests once, before there is any program.

    What Python does on first use (inline caches, free lists, lazily made objects) is then done in the zygote, in
    pages that all guests share, and not by every guest in pages of its own.
    """
    ours, theirs = socket.socketpair()
    with ours, theirs:
        guest = Guest(theirs.fileno())
        for turn in range(10):
            requests: list[list[Wire]] = [["load", compiled(_REHEARSAL).code, True, ["f", "g"]]]
            requests += [["call", "f", None, [value, [value]], {"d": []}] for value in (turn, "text", 1.5, None)]
            for request in requests:
                ours.sendall(frames.pack(["nonce", *request]))
            guest.serve(len(requests))
            ours.recv(frames.CHUNK)
