"""The guest: one process per program, and the only one in which code of a program runs.

It answers the judge's requests, one at a time, over descriptor 3. Nothing in here is relied on: the program
shares the interpreter with this module and may rewrite it at will. What it can reach that way is its own
death or a wrong answer. Requests are [nonce, operation, ...], answers [nonce, kind, ...]:

| request | answer |
|---|---|
| `compile` source | `ok` marshalled code in hexadecimal, or null · `syntax` message, line, column |
| `load` program, marshalled?, names | `ok` {name: reference, if it can be called} · `syntax` message, line, column |
| `script` program, marshalled? | `ok` null, `raise` or `syntax`; then the process ends as a script does |
| `test` source | `ok` null, or `raise` |
| `define` source, override | `ok` null: code whose names the following tests share |
| `unit` class, method | `ok` [status, type, message, line] |
| `name` name | a value |
| `call` target, attribute or null, names of keywords; values | a value |
| `get` target, attribute · `set` target, attribute; value · `delete` target, attribute | a value |
| `operate` function of `operator` or builtin; values | a value |
| `next` target, most | a tuple: items, whether that was the end, what the generator returned |

The last five are sent as operation, news, JSON, values. News are the numbers of shared objects that the judge is about
to forget and the content of those that its tests have changed (see `shared_objects`), or null.
A value is `ok` value, changes.
`raise` carries type name, message, line, the names of the builtin base classes, details (see `remote_exceptions`) and changes.
A target is a name of the program or the number of an object it has returned.
"""

from __future__ import annotations

import builtins
import operator
import os
import socket
import sys
import types
from collections.abc import Callable
from typing import Any

from ..protocol import frames
from ..protocol.encoding import Wire
from . import script
from .compilation import SOLUTION, code_of, compiled
from .guest_objects import GuestObjects, description

_DESYNCHRONISED = 98
_MAX_DETAILS = 1 << 16


class ResultTooLarge(Exception):
    """A program returned more than a reply may hold."""


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
        message = str(error)[:4000]
    except BaseException:  # a hostile or broken __str__ may raise anything
        message = "<the exception cannot be printed>"
    kind = type(error)
    bases = [base.__name__ for base in kind.__mro__ if base.__module__ == "builtins"]
    return [kind.__name__, message, _line_of(error.__traceback__), bases[:6]]


class Guest:
    """Serves one judge, over an open descriptor."""

    def __init__(self, descriptor: int = 3) -> None:
        self._descriptor = descriptor
        self.max_reply = 1 << 20
        self._module = types.ModuleType("solution")
        self._shared = GuestObjects(self._module)
        self._module.__file__ = script.ARGV[0]
        sys.modules["solution"] = self._module
        self._test_names: dict[str, Any] = {}
        self._exit_status: int | None = None
        self._operations: dict[str, Callable[..., list[Wire]]] = {
            "compile": compiled,
            "load": self._load,
            "script": self._script,
            "test": self._test,
            "define": self._define,
            "unit": self._unit,
        }
        self._on_values: dict[str, tuple[int, Callable[..., Any]]] = {
            "name": (1, self._shared.target),
            "call": (3, self._call),
            "get": (2, lambda target, attribute: getattr(self._shared.target(target), attribute)),
            "set": (2, lambda target, attribute, value: setattr(self._shared.target(target), attribute, value)),
            "delete": (2, lambda target, attribute: delattr(self._shared.target(target), attribute)),
            "operate": (1, self._operate),
            "next": (2, self._next),
        }

    def recv(self, size: int, /) -> bytes:
        """Bytes from the judge, without the detour over a socket object."""
        return os.read(self._descriptor, size)

    def serve(self, most: int = -1) -> None:
        """Answer requests, `most` of them or until the connection closes: raises frames.ConnectionClosed."""
        reader = frames.FrameReader(self)
        while most:
            most -= 1
            nonce, operation, news, *arguments = reader.message()
            if operation in self._operations:
                frame = self._answer(nonce, operation, arguments)
            else:
                frame = self._value(nonce, operation, news, arguments)
            for stream in (sys.stdout, sys.stderr):
                try:
                    stream.flush()
                except BaseException:  # the program may have closed or replaced it
                    pass
            while frame:
                frame = frame[os.write(self._descriptor, frame) :]
            if self._exit_status is not None:
                script.end(self._module.__dict__, self._exit_status)

    def _answer(self, nonce: str, operation: str, arguments: list[Wire]) -> bytes:
        try:
            answer = self._operations[operation](*arguments)
            return self._packed([nonce, *answer])
        except BaseException as error:  # SystemExit and KeyboardInterrupt are results like any other
            return self._packed([nonce, "raise", *describe_error(error), None, None])

    def _value(self, nonce: str, operation: str, news: Wire, arguments: list[Wire]) -> bytes:
        """The answer of an operation on values, and what it has changed."""
        shared = self._shared
        count, perform = self._on_values[operation]
        try:
            if news is not None:
                shared.apply_changes(news[1])
                shared.drop(news[0])
            values = [shared.decode_value(wire) for wire in arguments[count:]]
            shared.take_snapshot()
        except BaseException:  # out of memory, say: from here on the numbers would differ from the judge's
            os._exit(_DESYNCHRONISED)
        raised: BaseException | None = None
        result = None
        try:
            result = perform(*arguments[:count], *values)
        except BaseException as error:
            raised = error
        del values
        first = shared.next_number()
        try:
            changes = shared.pending_changes() or None
            if raised is None:
                answer = ["ok", *shared.encode_values(result), changes]
            else:
                answer = ["raise", *describe_error(raised), self._details(raised), changes]
            frame = self._packed([nonce, *answer])
        except BaseException as error:
            shared.roll_back(first)
            return self._packed([nonce, "raise", *describe_error(error), None, None])
        shared.take_snapshot()
        return frame

    def _packed(self, answer: list[Wire]) -> bytes:
        frame = frames.pack(answer)
        if len(frame) > self.max_reply:
            raise ResultTooLarge(f"the result takes {len(frame)} bytes, more than {self.max_reply}")
        return frame

    def _details(self, error: BaseException, causes: int = 3) -> Wire:
        """What `remote_exceptions` makes the exception of; null if that is not data, or much."""
        first = self._shared.next_number()
        try:
            kind = type(error)
            exact = getattr(builtins, kind.__name__, None) is kind
            attributes = {key: value for key, value in vars(error).items() if type(key) is str}
            attributes |= {key: getattr(error, key) for key in ("name", "filename", "lineno") if hasattr(kind, key)}
            details = [exact, *self._shared.encode_values(error.args, attributes)]
            cause = error.__cause__ if causes else None
            details.append(cause and [*describe_error(cause), self._details(cause, causes - 1)])
            if len(frames.pack(details)) <= _MAX_DETAILS:
                return details
        except BaseException:  # too deep, or an exception that hides its own arguments
            pass
        self._shared.unregister_from(first)
        return None

    # --- operations ---

    def _load(self, program: str, is_code: bool, names: list[str]) -> list[Wire]:
        code = code_of(program, is_code)
        if not isinstance(code, types.CodeType):
            return code
        namespace = self._module.__dict__
        exec(code, namespace)
        found = {wanted: namespace[wanted] for wanted in names if wanted in namespace}
        return ["ok", {key: [key, *description(value)] for key, value in found.items() if callable(value)}]

    def _script(self, program: str, is_code: bool) -> list[Wire]:
        code = code_of(program, is_code)
        if not isinstance(code, types.CodeType):
            return code
        self._module.__name__ = "__main__"
        sys.modules["__main__"] = self._module
        self._exit_status = 0
        try:
            exec(code, self._module.__dict__)
        except BaseException as error:
            self._exit_status = script.exit_status(error)
            return ["raise", *describe_error(error), None, None]
        return ["ok", None]

    def _call(self, target: str | int, attribute: str | None, keywords: list[str], *values: Any) -> Any:
        function = self._shared.target(target)
        if attribute is not None:
            function = getattr(function, attribute)
        if not keywords:
            return function(*values)
        count = len(values) - len(keywords)
        return function(*values[:count], **dict(zip(keywords, values[count:], strict=True)))

    def _operate(self, function: str, *values: Any) -> Any:
        perform = getattr(operator, function, None) or getattr(builtins, function)
        return perform(*values)

    def _next(self, target: str | int, most: int) -> tuple[tuple[Any, ...], bool, Any]:
        iterator = self._shared.target(target)
        items: list[Any] = []
        while len(items) < most:
            try:
                items.append(next(iterator))
            except StopIteration as end:
                return tuple(items), True, end.value
        return tuple(items), False, None

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
            requests: list[list[Wire]] = [["load", compiled(_REHEARSAL)[1], True, ["f", "g"]]]
            requests += [["call", "f", None, [], value, [value]] for value in (turn, "text", 1.5, None)]
            for operation, *rest in requests:
                ours.sendall(frames.pack(["nonce", operation, None, *rest]))
            guest.serve(len(requests))
            ours.recv(frames.CHUNK)
