"""Errors and verdicts of the guest: validation before they enter a report, and exceptions rebuilt in the judge."""

from __future__ import annotations

import builtins
import contextlib
import functools
import sys
import types
from collections.abc import Callable
from typing import Any

from ..protocol import decoding
from ..protocol.encoding import ProtocolError, Wire
from ..protocol.messages import SyntaxDiagnosis, TestResult
from ..protocol.references import LIBRARIES
from .evaluation_context import GuestFault


def clean_text(text: Any, limit: int = 500) -> str:
    """Return at most `limit` characters without surrogates, control or escape characters; "" if not a string."""
    if not isinstance(text, str):
        return ""
    text = text[:limit].encode("utf-8", "replace").decode()
    return "".join(c if c.isprintable() or c in "\n\t" else "?" for c in text)


def clean_line(line: Any) -> int | None:
    """Return a plausible line or column number, else None."""
    if type(line) is int and 0 < line < 1 << 31:
        return line
    return None


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


class ErrorDecoder:
    """Decoder of one session's exceptions. The classes that it makes live as long as the session.

    `decode` returns the value of untrusted JSON or raises ProtocolError.
    """

    def __init__(self, decode: Callable[[Wire], Any]) -> None:
        self._decode = decode
        self._subclass = functools.lru_cache(maxsize=256)(_subclass)

    def exception(self, description: list[Wire]) -> BaseException:
        """Return the exception of a description [type name, message, line, bases, details]. Raises ProtocolError.

        The exception is of the nearest class among `bases` that the judge has, so that a test's `except ValueError` or
        `except json.JSONDecodeError` works, or of a subclass with the program's class name. Its attribute `remote`
        holds type, message and line for the report. `details` are null or [whether the class is that base itself,
        arguments, attributes, description of the cause or context, whether that is the cause, members of a group].
        """
        name, message, line, bases, details = description
        if type(message) is not str:
            message = ""
        name = clean_text(name, 80) or "Exception"
        kind: type[BaseException] = RemoteError
        if type(bases) is list:
            kind = next(filter(None, map(_known_class, bases)), RemoteError)
        if issubclass(kind, _NEVER_RAISED):
            kind = RemoteError
        exact = is_cause = False
        arguments: Any = (message,)
        attributes: dict[Any, Any] = {}
        related = None
        if details is not None:
            exact, arguments, attributes, related, is_cause = self._details(details)
        if issubclass(kind, _UNICODE) and not _range_is_valid(arguments):
            kind = UnicodeError
        if issubclass(kind, BaseExceptionGroup) and not _is_group(kind, arguments):
            kind = RemoteError
        if not (exact and kind.__name__ == name):
            kind = self._subclass(name, kind)  # type: ignore[arg-type]
        error = _make(kind, arguments)
        for key, value in attributes.items():
            if type(key) is not str or (key.startswith("__") and key != "__notes__"):
                continue
            if _may_set(error, key, value):
                with contextlib.suppress(TypeError, AttributeError, ValueError):
                    object.__setattr__(error, key, value)
        if is_cause:
            error.__cause__ = related
        else:
            error.__context__ = related
        object.__setattr__(error, "remote", (name, clean_text(message), clean_line(line)))
        if hasattr(type(error), "program_text"):
            object.__setattr__(error, "program_text", message)
        return error

    def _details(self, details: Wire) -> tuple[Any, ...]:
        # `exact` and `is_cause`, the first and the fifth, are truth values.
        if type(details) is not list or list(map(type, details[0:5:4])) != [bool, bool]:
            raise ProtocolError("malformed exception")
        exact, arguments, attributes, related, is_cause, members = details
        arguments = self._decode(arguments)
        attributes = self._decode(attributes)
        if type(arguments) is not tuple or type(attributes) is not dict:
            raise ProtocolError("malformed exception")
        if members is not None:
            arguments = (*arguments[:1], [self.exception(member) for member in members])
        if related is not None:
            related = self.exception(related)
        return exact, arguments, attributes, related, is_cause


def _known_class(base: Wire) -> type[BaseException] | None:
    """Return the class of an exception's base: the name of a builtin, or "module:name" of a library.

    Of a library, only modules that the judge has imported are considered: a test cannot name classes of other modules.
    """
    if type(base) is not str:
        return None
    module, _, name = base.rpartition(":")
    owner = sys.modules.get(module, builtins) if module else builtins
    kind = vars(owner).get(name)
    if not isinstance(kind, type):
        return None
    if not module:
        may_be_raised = issubclass(kind, (Exception, *_CONTROL))
    elif module.startswith("unittest"):  # e.g. SkipTest, which would skip the test
        may_be_raised = False
    else:
        may_be_raised = module.partition(".")[0] in LIBRARIES and issubclass(kind, Exception)
    return kind if may_be_raised else None


def _is_group(kind: type[BaseException], arguments: tuple[Any, ...]) -> bool:
    """Return whether an exception group can be made of these arguments."""
    if len(arguments) != 2 or type(arguments[0]) is not str or type(arguments[1]) is not list:
        return False
    return bool(arguments[1]) and all(isinstance(member, Exception) for member in arguments[1])


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


def _make(kind: type[BaseException], arguments: tuple[Any, ...]) -> BaseException:
    """Return an exception. No constructor written in Python is called: it might ask the program about arguments."""
    error = None
    with contextlib.suppress(Exception):  # the class may need other arguments than the program's class
        if isinstance(kind.__init__, types.FunctionType):
            error = kind.__new__(kind, *arguments)
        else:
            error = kind(*arguments)
    if error is None:
        try:
            error = kind.__new__(kind)
        except TypeError:
            error = _subclass(kind.__name__, RemoteError)()
    error.args = arguments
    return error


def _subclass(name: str, base: Any) -> type[BaseException]:
    own = {"__module__": "solution", "program_text": "", "__str__": lambda error: str(error.program_text)}
    return type(name, (base,), own)
