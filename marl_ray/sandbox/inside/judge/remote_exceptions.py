"""Exceptions of the program, in the judge: the right builtin base, the program's name, the arguments that are data."""

from __future__ import annotations

import builtins
import contextlib
import functools
from collections.abc import Callable
from typing import Any

from ..protocol.encoding import ProtocolError, Wire
from .text import clean_line, clean_text

_NEVER_RAISED = (StopIteration, StopAsyncIteration, GeneratorExit)
"""A program that raises these would end the loops of a test early: `all(map(candidate, cases))` would be
true.
"""
_CONTROL = (SystemExit, KeyboardInterrupt)


class RemoteError(Exception):
    """What the guest reports as raised, when no builtin exception fits."""


def exception(answer: list[Wire], decoded: Callable[[Wire], Any]) -> BaseException:
    """The exception to raise for `raise` type name, message, line, builtin bases, details, changes.

    It is of the nearest builtin class, so that a test's `except ValueError` works, or of a class of its own below that
    one with the program's name; `remote` on it holds what is to be reported. `details` are [whether it is that builtin
    class itself, arguments, attributes, cause] or null; a cause is the first five parts of another one, or null.
    """
    return _exception(answer[1:6], decoded)


def _exception(description: list[Wire], decoded: Callable[[Wire], Any]) -> BaseException:
    name, message, line, bases, details = description
    message = message if type(message) is str else ""
    name = clean_text(name, 80) or "Exception"
    kind: type[BaseException] = RemoteError
    for base in bases if type(bases) is list else ():
        found = getattr(builtins, base, None) if type(base) is str else None
        if isinstance(found, type) and issubclass(found, (Exception, *_CONTROL)):
            kind = found
            break
    if issubclass(kind, _NEVER_RAISED):
        kind = RemoteError
    parts: _Details = (False, (message,), {}, None) if details is None else _details(details, decoded)
    exact, arguments, attributes, cause = parts
    if issubclass(kind, _UNICODE) and not _in_bounds(arguments):
        kind = UnicodeError
    if not (exact and kind.__name__ == name):
        kind = _subclass(name, kind)  # type: ignore[arg-type]
    error = _make(kind, arguments, name)
    for key, value in attributes.items():
        if type(key) is str and not key.startswith("__") and _may_set(error, key, value):
            with contextlib.suppress(TypeError, AttributeError, ValueError):
                object.__setattr__(error, key, value)
    error.__cause__ = cause
    object.__setattr__(error, "remote", (name, clean_text(message), clean_line(line)))
    if hasattr(type(error), "program_text"):
        object.__setattr__(error, "program_text", message)
    return error


_UNICODE = (UnicodeDecodeError, UnicodeEncodeError, UnicodeTranslateError)


def _in_bounds(arguments: tuple[Any, ...]) -> bool:
    """Whether start and end lie in the text: CPython's messages read what they point at, wherever that is."""
    if len(arguments) not in (4, 5):
        return False
    text, start, end, _ = arguments[-4:]
    if type(text) not in (bytes, str) or type(start) is not int or type(end) is not int:
        return False
    return 0 <= start < end <= len(text)


def _may_set(error: BaseException, key: str, value: Any) -> bool:
    """Any name of the program's own; of those that builtin exceptions have in C, plain values, and none of Unicode
    errors (see `_in_bounds`).
    """
    if not hasattr(type(error), key):
        return True
    if hasattr(BaseException, key) or isinstance(error, UnicodeError):
        return False
    return type(value) in (str, int, bool, type(None))


_Details = tuple[bool, tuple[Any, ...], dict[Any, Any], BaseException | None]


def _details(details: Wire, decoded: Callable[[Wire], Any]) -> _Details:
    if type(details) is not list or len(details) != 4 or type(details[0]) is not bool:
        raise ProtocolError("malformed exception")
    arguments, attributes = decoded(details[1]), decoded(details[2])
    if type(arguments) is not tuple or type(attributes) is not dict:
        raise ProtocolError("malformed exception")
    cause = details[3]
    if cause is None:
        return details[0], arguments, attributes, None
    if type(cause) is not list or len(cause) != 5:
        raise ProtocolError("malformed exception")
    return details[0], arguments, attributes, _exception(cause, decoded)


def _make(kind: type[BaseException], arguments: tuple[Any, ...], name: str) -> BaseException:
    try:
        error = kind(*arguments)
    except Exception:  # some want arguments of certain types, and the program's class may have its own idea of them
        try:
            error = kind.__new__(kind)
        except TypeError:
            error = _subclass(name, RemoteError)()
    error.args = arguments
    return error


@functools.lru_cache(maxsize=256)
def _subclass(name: str, base: Any) -> type[BaseException]:
    return type(name, (base,), {"__module__": "solution", "program_text": "", "__str__": _program_text})


def _program_text(error: Any) -> str:
    return str(error.program_text)
