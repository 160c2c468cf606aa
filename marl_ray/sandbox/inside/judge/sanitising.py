"""Validation of untrusted text, errors and verdicts before they enter a report."""

from __future__ import annotations

from typing import Any

from ..protocol.decoding import decode
from ..protocol.encoding import ProtocolError
from ..protocol.messages import SyntaxDiagnosis, TestResult
from .evaluation_context import GuestFault

_MAX_MESSAGE = 500


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


def describe_local_error(error: BaseException) -> tuple[str, str, None]:
    """Return type, message and line of an exception that the test raised in the judge."""
    return type(error).__name__, clean_text(exception_text(error), _MAX_MESSAGE), None


def parse_error(answer: list[Any]) -> tuple[str, str, int | None]:
    """Return type, message and line of a guest's `raise` answer."""
    name, message, line = answer[1:4]
    return clean_text(name, 80) or "Exception", clean_text(message, _MAX_MESSAGE), clean_line(line)


def parse_syntax_error(answer: list[Any]) -> SyntaxDiagnosis:
    """Return the diagnosis of a guest's `syntax` answer."""
    return SyntaxDiagnosis(clean_text(answer[1]), clean_line(answer[2]), clean_line(answer[3]))


def parse_unittest_verdict(wire: Any) -> TestResult:
    """Return the verdict of a guest on one test method."""
    try:
        status, error_type, message = decode(wire)
    except (ProtocolError, TypeError, ValueError):
        status, error_type, message = "", None, None
    if status == "pass":
        return TestResult("pass")
    if status not in ("fail", "error", "skipped"):
        return TestResult("crash", "ProtocolError", "malformed verdict")
    return TestResult(status, clean_text(error_type, 80), clean_text(message, _MAX_MESSAGE))
