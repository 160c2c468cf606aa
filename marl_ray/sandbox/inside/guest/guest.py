"""The guest: answers the judge's requests over descriptor 3, one at a time (docs/explanation/sandbox.md).

No property of this code is relied on: the program shares the interpreter with this module and may rewrite it. All it
can reach that way is its own death or a wrong answer.
"""

from __future__ import annotations

import builtins
import copy
import functools
import marshal
import operator
import os
import socket
import sys
import types
import warnings
from collections.abc import Callable
from typing import Any

from ..protocol import messages
from ..protocol.comparable import content_of
from ..protocol.encoding import Wire
from ..protocol.references import stdlib_name
from . import script_process
from .guest_objects import GuestObjects, describe_object

SOLUTION = "<solution>"
_DESYNCHRONISED = 98
_MAX_DETAILS = 1 << 16
_MAX_CODE = 1 << 20
_MAX_BASES = 8
_MAX_MEMBERS = 64

_CONSTANT = (int, float, str, bool, bytes, type(None))
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "setrecursionlimit": sys.setrecursionlimit,
    "content": content_of,
}


def _function(name: str) -> Callable[..., Any]:
    """Return the function of an `operate` request."""
    found: Any = _FUNCTIONS.get(name) or getattr(operator, name, None) or getattr(builtins, name)
    return found  # type: ignore[no-any-return]


class ResultTooLarge(Exception):
    """Result of the program that exceeds the size limit of a reply."""


def compile_program(source: str) -> list[Wire]:
    """Return the answer to `compile`; its code is null where only the program's own guest can tell."""
    code = b""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            code = marshal.dumps(compile(source, SOLUTION, "exec", dont_inherit=True))
    except SyntaxError as error:
        return _syntax_answer(error)
    except (ValueError, RecursionError, MemoryError, OverflowError):
        pass
    return ["ok", code.hex() if 0 < len(code) <= _MAX_CODE else None]


def _code_of(program: str, is_code: bool) -> types.CodeType | list[Wire]:
    """Return the code of a program that is source or marshalled code, or the `syntax` answer."""
    try:
        if is_code:
            return marshal.loads(bytes.fromhex(program))  # type: ignore[no-any-return]
        return compile(program, SOLUTION, "exec", dont_inherit=True)
    except SyntaxError as error:
        return _syntax_answer(error)
    except (ValueError, RecursionError, MemoryError, OverflowError) as error:  # null bytes, deep nesting
        return ["syntax", str(error) or "too deeply nested", None, None]


def _syntax_answer(error: SyntaxError) -> list[Wire]:
    return ["syntax", str(error.msg), error.lineno, error.offset]


def _line_of(traceback: types.TracebackType | None) -> int | None:
    """Return the innermost line of the program in a traceback."""
    line = None
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename == SOLUTION:
            line = traceback.tb_lineno
        traceback = traceback.tb_next
    return line


def describe_error(error: BaseException) -> list[Wire]:
    """Return [type name, message, line, names of builtin base classes], whatever the exception's methods do."""
    try:
        message = str(error)[:4000]
    except BaseException:  # a hostile or broken __str__ may raise anything
        message = "<the exception cannot be printed>"
    kind = type(error)
    bases = [name for name in map(_library_name, kind.__mro__) if name]
    return [kind.__name__, message, _line_of(error.__traceback__), bases[:_MAX_BASES]]


def _library_name(kind: type) -> str | None:
    """Return the name of a builtin class, "module:name" of a library's class, or None for other classes."""
    if kind.__module__ == "builtins":
        return kind.__name__
    name = stdlib_name(kind)
    if name is None or "." in name.partition(":")[2]:
        return None
    return name


class Guest:
    """Server of one judge, over an open descriptor. A target is a name of the program or the number of an object."""

    def __init__(self, descriptor: int = 3) -> None:
        self._descriptor = descriptor
        self.max_reply = 1 << 20
        self._module = types.ModuleType("solution")
        self._shared = GuestObjects(self._module)
        self._module.__file__ = script_process.ARGV[0]
        sys.modules["solution"] = self._module
        self._test_names: dict[str, Any] = {}
        self._exit_status: int | None = None
        self._operations: dict[str, Callable[..., list[Wire]]] = {
            "compile": compile_program,
            "prepare": self._prepare,
            "load": self._load,
            "script": self._script,
            "test": self._test,
            "define": self._define,
            "unit": self._unit,
        }
        self._value_operations: dict[str, tuple[int, Callable[..., Any]]] = {
            "name": (1, self._shared.target),
            "call": (3, self._call),
            "get": (2, lambda target, attribute: getattr(self._shared.target(target), attribute)),
            "set": (2, lambda target, attribute, value: setattr(self._shared.target(target), attribute, value)),
            "delete": (2, lambda target, attribute: delattr(self._shared.target(target), attribute)),
            "operate": (1, lambda name, *values: _function(name)(*values)),
            "next": (3, self._next),
        }

    def serve(self, count: int = -1) -> None:
        """Answer `count` requests (default: no limit). Raises messages.ConnectionClosed if the connection closes."""
        reader = messages.FrameReader(functools.partial(os.read, self._descriptor))
        while count:
            count -= 1
            nonce, operation, news, *arguments = reader.message()
            if operation in self._operations:
                frame = self._answer(nonce, operation, arguments)
            else:
                frame = self._value(nonce, operation, news, arguments)
            for stream in (sys.stdout, sys.stderr):
                try:
                    stream.flush()
                except BaseException:  # the program may have closed or replaced the stream
                    pass
            while frame:
                frame = frame[os.write(self._descriptor, frame) :]
            if self._exit_status is not None:
                script_process.exit_like_script(self._module.__dict__, self._exit_status)

    def _answer(self, nonce: str, operation: str, arguments: list[Wire]) -> bytes:
        try:
            answer = self._operations[operation](*arguments)
            return self._packed([nonce, *answer])
        except BaseException as error:  # SystemExit and KeyboardInterrupt are ordinary results
            return self._packed([nonce, "raise", *describe_error(error), None, None])

    def _value(self, nonce: str, operation: str, news: Wire, arguments: list[Wire]) -> bytes:
        """Return the answer to an operation on values, with the changes it made to shared objects."""
        shared = self._shared
        count, perform = self._value_operations[operation]
        try:
            if news is not None:
                shared.apply_changes(news[1])
                shared.drop(news[0])
            values = [shared.decode_value(wire) for wire in arguments[count:]]
            shared.take_snapshot()
        except BaseException:  # e.g. MemoryError: from here on the object numbers would differ from the judge's
            os._exit(_DESYNCHRONISED)
        raised: BaseException | None = None
        result = None
        try:
            result = perform(*arguments[:count], *values)
        except BaseException as error:
            raised = error
        del values
        first = shared.next_number
        try:
            changes = shared.pending_changes() or None
            if raised is None:
                answer = ["ok", *shared.encode_values(result), changes]
            else:
                answer = ["raise", *self._description(raised), changes]
            frame = self._packed([nonce, *answer])
        except BaseException as error:
            shared.roll_back(first)
            return self._packed([nonce, "raise", *describe_error(error), None, None])
        shared.take_snapshot()
        return frame

    def _packed(self, answer: list[Wire]) -> bytes:
        frame = messages.pack(answer)
        if len(frame) > self.max_reply:
            raise ResultTooLarge(f"the result takes {len(frame)} bytes, more than {self.max_reply}")
        return frame

    def _description(self, error: BaseException, causes: int = 3) -> list[Wire]:
        return [*describe_error(error), self._details(error, causes)]

    def _details(self, error: BaseException, causes: int) -> Wire:
        """Return the details for `remote_errors`; null if they are not plain data or too large."""
        first = self._shared.next_number
        try:
            kind = type(error)
            exact = _library_name(kind) is not None
            attributes = {key: value for key, value in vars(error).items() if type(key) is str}
            attributes |= {key: getattr(error, key) for key in ("name", "filename", "lineno") if hasattr(kind, key)}
            members = None
            arguments = error.args
            if isinstance(error, BaseExceptionGroup) and causes:
                members = error.exceptions[:_MAX_MEMBERS]
                arguments = arguments[:1]  # the members are described apart
            is_cause = error.__suppress_context__
            related = None
            if causes:
                related = error.__cause__ if is_cause else error.__context__
            details = [exact, *self._shared.encode_values(arguments, attributes)]
            details += [related and self._description(related, causes - 1), is_cause]
            details.append(members and [self._description(member, causes - 1) for member in members])
            if len(messages.pack(details)) <= _MAX_DETAILS:
                return details
        except BaseException:  # e.g. too deep, or an exception that hides its arguments
            pass
        self._shared.unregister_from(first)
        return None

    # --- operations ---

    def _prepare(self, source: str) -> list[Wire]:
        """Define names that the program may use without defining them."""
        exec(compile(source, "<tests>", "exec", dont_inherit=True), self._module.__dict__)
        return ["ok", None]

    def _load(self, program: str, is_code: bool, names: list[str]) -> list[Wire]:
        code = _code_of(program, is_code)
        if not isinstance(code, types.CodeType):
            return code
        namespace = self._module.__dict__
        exec(code, namespace)
        values = {name: namespace[name] for name in names if name in namespace}
        callables = {}
        for name, value in values.items():
            if callable(value):
                callables[name] = [name, *describe_object(value)]
        return ["ok", callables]

    def _script(self, program: str, is_code: bool) -> list[Wire]:
        code = _code_of(program, is_code)
        if not isinstance(code, types.CodeType):
            return code
        self._module.__name__ = "__main__"
        sys.modules["__main__"] = self._module
        self._exit_status = 0
        try:
            exec(code, self._module.__dict__)
        except BaseException as error:
            self._exit_status = script_process.exit_status(error)
            return ["raise", *describe_error(error), None, None]
        return ["ok", None]

    def _call(self, target: str | int, attribute: str | None, keywords: list[str], *values: Any) -> Any:
        function = self._shared.target(target)
        if attribute is not None:
            function = getattr(function, attribute)
        count = len(values) - len(keywords)
        return function(*values[:count], **dict(zip(keywords, values[count:], strict=True)))

    def _next(self, target: str | int, limit: int, constant: bool) -> tuple[tuple[Any, ...], bool, Any]:
        iterator = self._shared.target(target)
        items: list[Any] = []
        while len(items) < limit:
            try:
                items.append(next(iterator))
            except StopIteration as end:
                return tuple(items), True, end.value
            if constant and type(items[-1]) not in _CONSTANT:
                break
        return tuple(items), False, None

    # --- tests that must run in the guest ---

    def _names(self) -> dict[str, Any]:
        if not self._test_names:
            self._test_names = {"__name__": "tests", **self._module.__dict__}
        return self._test_names

    def _define(self, source: str, override: bool) -> list[Wire]:
        """Run test code. With `override` its names replace the program's, else only missing names are added."""
        names = self._names()
        code = compile(source, "<tests>", "exec", dont_inherit=True)
        if override:
            exec(code, names)
            return ["ok", None]
        own = dict(names)
        exec(code, own)
        names |= own | names
        return ["ok", None]

    def _test(self, source: str) -> list[Wire]:
        exec(compile(source, "<test>", "exec", dont_inherit=True), self._names())
        return ["ok", None]

    def _unit(self, class_name: str, method: str) -> list[Wire]:
        import unittest

        result = unittest.TestResult()
        unittest.TestSuite([self._names()[class_name](method)]).run(result)
        if result.failures:
            return ["ok", ["fail", *_type_and_message(result.failures[0][1])]]
        if result.errors:
            return ["ok", ["error", *_type_and_message(result.errors[0][1])]]
        if result.unexpectedSuccesses:
            return ["ok", ["fail", *_type_and_message("unexpected success")]]
        if result.skipped:
            return ["ok", ["skipped", "SkipTest", result.skipped[0][1]]]
        return ["ok", ["pass", None, None]]


def _type_and_message(trace: str) -> tuple[str, str]:
    """Return type and message at the end of a formatted traceback; the message may have several lines."""
    lines = trace.rpartition("Traceback (most recent call last):\n")[2].rstrip().splitlines()
    # The lines of the stack are indented.
    start = 0
    while start < len(lines) and lines[start].startswith(" "):
        start += 1
    kind, _, message = "\n".join(lines[start:] or lines).partition(": ")
    return kind.rpartition(".")[2], message or kind


_WARM_UP = """
def f(x, y=None):
    if x is None:
        raise ValueError("none")
    return [x, {x: y}, (x, y), str(x)]
"""


def warm_up() -> None:
    """Answer typical requests in the zygote, before there is any program.

    Python's work on first use (inline caches, free lists, lazy objects) is then done once, in pages that guests share.
    """
    ours, theirs = socket.socketpair()
    with ours, theirs:
        guest = Guest(theirs.fileno())
        for number in range(10):
            requests: list[list[Wire]] = [["load", compile_program(_WARM_UP)[1], True, ["f", "g"]]]
            requests += [["call", "f", None, [], value, [value]] for value in (number, "text", 1.5, None)]
            for operation, *rest in requests:
                ours.sendall(messages.pack(["nonce", operation, None, *rest]))
            guest.serve(len(requests))
            ours.recv(messages.CHUNK)
