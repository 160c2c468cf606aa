"""Errors and verdicts of the guest: validation before they enter a report, and exceptions rebuilt in the judge."""

from __future__ import annotations

import builtins
import contextlib
import functools
from collections.abc import Callable
from typing import Any

from ..protocol import decoding
from ..protocol.encoding import ProtocolError, Wire
from ..protocol.messages import SyntaxDiagnosis, TestResult
from .evaluation_context import GuestFault


def clean_text(text: Any, limit: int = 500) -> str:
    """Return at most `limit` characters without surrogates, control or escape characters; "" if not a string."""
    if not isinstance(text, str):
        return ""
    text = text[:limit].encode("utf-8", "replace").decode()
    return "".join(c if c.isprintable() or c in "\n\t" else "?" for c in text)


def clean_line(line: Any) -> int | None:
    """Return a plausible line or column number, else None."""
    return line if type(line) is int and 0 < line < 1 << 31 else None


def exception_text(error: BaseException) -> str:
    """Return `str(error)`, or "" if that raises: the arguments may be proxies, which may raise any exception."""
    try:
        return str(error)
    except GuestFault:
        raise
    except BaseException:
        return ""


def parse_error(answer: list[Any]) -> tuple[str, str, int | None]:
    """Return type, message and line of a guest's `raise` answer."""
    name, message, line = answer[1:4]
    return clean_text(name, 80) or "Exception", clean_text(message), clean_line(line)


def parse_syntax_error(answer: list[Any]) -> SyntaxDiagnosis:
    return SyntaxDiagnosis(clean_text(answer[1]), clean_line(answer[2]), clean_line(answer[3]))


def parse_unittest_verdict(wire: Any) -> TestResult:
    """Return the verdict of a guest on one test method."""
    try:
        status, error_type, message = decoding.decode(wire)
    except (ProtocolError, TypeError, ValueError):
        status, error_type, message = "", None, None
    if status == "pass":
        return TestResult("pass")
    if status not in ("fail", "error", "skipped"):
        return TestResult("crash", "ProtocolError", "malformed verdict")
    return TestResult(status, clean_text(error_type, 80), clean_text(message))


_NEVER_RAISED = (StopIteration, StopAsyncIteration, GeneratorExit)
"""Raised in a test, these would end its loops early: `all(map(candidate, cases))` would be true."""
_CONTROL = (SystemExit, KeyboardInterrupt)


class RemoteError(Exception):
    """Exception of the program that derives from no suitable builtin exception."""


def decode_exception(description: list[Wire], decode: Callable[[Wire], Any]) -> BaseException:
    """Return the exception of a description [type name, message, line, builtin bases, details]. Raises ProtocolError.

    The exception is of the nearest builtin class, so that a test's `except ValueError` works, or of a subclass with
    the program's class name. Its attribute `remote` holds type, message and line for the report. `details` are null or
    [whether the class is that builtin class itself, arguments, attributes, description of the cause or null].
    """
    name, message, line, bases, details = description
    message = message if type(message) is str else ""
    name = clean_text(name, 80) or "Exception"
    kind: type[BaseException] = RemoteError
    for base in bases if type(bases) is list else ():
        builtin = getattr(builtins, base, None) if type(base) is str else None
        if isinstance(builtin, type) and issubclass(builtin, (Exception, *_CONTROL)):
            kind = builtin
            break
    if issubclass(kind, _NEVER_RAISED):
        kind = RemoteError
    exact, arguments, attributes, cause = False, (message,), {}, None
    if details is not None:
        exact, arguments, attributes, cause = _decode_details(details, decode)
    if issubclass(kind, _UNICODE) and not _range_is_valid(arguments):
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


def _range_is_valid(arguments: tuple[Any, ...]) -> bool:
    """Return whether start and end lie in the text: CPython's messages read at these positions without a check."""
    if len(arguments) not in (4, 5):
        return False
    text, start, end, _ = arguments[-4:]
    if type(text) not in (bytes, str) or type(start) is not int or type(end) is not int:
        return False
    return 0 <= start < end <= len(text)


def _may_set(error: BaseException, key: str, value: Any) -> bool:
    """Return whether an attribute may be set: any of the program's own class; of attributes that builtin exceptions
    have in C, only plain values, and none of Unicode errors (see `_range_is_valid`).
    """
    if not hasattr(type(error), key):
        return True
    is_plain = type(value) in (str, int, bool, type(None))
    return is_plain and not hasattr(BaseException, key) and not isinstance(error, UnicodeError)


def _decode_details(details: Wire, decode: Callable[[Wire], Any]) -> tuple[Any, ...]:
    if type(details) is not list or len(details) != 4 or type(details[0]) is not bool:
        raise ProtocolError("malformed exception")
    exact, cause = details[0], details[3]
    arguments, attributes = decode(details[1]), decode(details[2])
    if type(arguments) is not tuple or type(attributes) is not dict:
        raise ProtocolError("malformed exception")
    if cause is not None and (type(cause) is not list or len(cause) != 5):
        raise ProtocolError("malformed exception")
    return exact, arguments, attributes, None if cause is None else decode_exception(cause, decode)


def _make(kind: type[BaseException], arguments: tuple[Any, ...], name: str) -> BaseException:
    try:
        error = kind(*arguments)
    except Exception:  # the builtin class needs other arguments than the program's class
        try:
            error = kind.__new__(kind)
        except TypeError:
            error = _subclass(name, RemoteError)()
    error.args = arguments
    return error


@functools.lru_cache(maxsize=256)
def _subclass(name: str, base: Any) -> type[BaseException]:
    own = {"__module__": "solution", "program_text": "", "__str__": lambda error: str(error.program_text)}
    return type(name, (base,), own)
