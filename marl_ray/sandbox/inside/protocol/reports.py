"""Verdicts read from another process, which may have been taken over by a test: nothing in them is relied on unread."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import NoneType
from typing import Any, get_args

from .messages import Status, SyntaxDiagnosis, TestResult

Kinds = Mapping[str, tuple[type, ...]]
"""Keys of an object, and the types of their values."""
VERDICT: Kinds = {
    "status": (str,),
    "error_type": (str, NoneType),
    "message": (str, NoneType),
    "line": (int, NoneType),
    "source": (str,),
    "trusted": (bool,),
}
_SYNTAX_ERROR: Kinds = {"message": (str,), "line": (int, NoneType), "column": (int, NoneType)}
_STATUSES = get_args(Status)
_MAX_TEXT = 1 << 14
"""Characters of a message, which is far more than the judge writes."""


class MalformedReport(Exception):
    """A report that the judge never makes; the message names the first fault."""


def read_object(wire: Any, kinds: Kinds) -> dict[str, Any]:
    """Return an object with exactly these keys and types. Raises MalformedReport, as do all functions below."""
    if type(wire) is not dict or wire.keys() != kinds.keys():
        raise MalformedReport(f"not an object of {', '.join(kinds)}")
    for name, allowed in kinds.items():
        if type(wire[name]) not in allowed:
            raise MalformedReport(f"{name} is of type {type(wire[name]).__name__}")
    return wire


def read_verdicts(wire: Any, count: int) -> list[TestResult]:
    """Return the verdicts on `count` tests."""
    if type(wire) is not list or len(wire) != count:
        raise MalformedReport(f"not a list of {count} verdicts")
    return [_read_verdict(item) for item in wire]


def _read_verdict(wire: Any) -> TestResult:
    verdict = TestResult(**read_object(wire, VERDICT))
    if verdict.status not in _STATUSES:
        raise MalformedReport("unknown status of a test")
    if max(len(verdict.error_type or ""), len(verdict.message or "")) > _MAX_TEXT:
        raise MalformedReport("message of a test is too long")
    _check_position(verdict.line)
    return verdict


def read_syntax_error(wire: Any) -> SyntaxDiagnosis | None:
    """Return the syntax error of a program, None for null."""
    if wire is None:
        return None
    diagnosis = SyntaxDiagnosis(**read_object(wire, _SYNTAX_ERROR))
    if len(diagnosis.message) > _MAX_TEXT:
        raise MalformedReport("message of a syntax error is too long")
    _check_position(diagnosis.line)
    _check_position(diagnosis.column)
    return diagnosis


def read_seconds(wire: Any) -> float:
    """Return a number of seconds."""
    if type(wire) is not float or not 0 <= wire < math.inf:
        raise MalformedReport("seconds are not a positive number")
    return wire


def read_text(wire: Any, longest: int) -> str:
    """Return a text of at most `longest` characters."""
    if type(wire) is not str or len(wire) > longest:
        raise MalformedReport(f"not a text of at most {longest} characters")
    return wire


def _check_position(number: int | None) -> None:
    if number is not None and not 0 <= number < 1 << 31:
        raise MalformedReport("impossible line or column")
