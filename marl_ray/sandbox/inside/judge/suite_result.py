"""What has been asked of the judge about a program, and what it has found out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ..protocol.decoding import decode
from ..protocol.encoding import ProtocolError
from ..protocol.frames import GuestLimits
from ..protocol.records import Limits, SyntaxDiagnosis, TestResult
from ..suites.suite import Suite
from .text import clean_line, clean_text, text_of

_MESSAGE = 500


@dataclass(slots=True)
class SuiteRequest:
    """One program as the owner sends it, and its code (see `program_compiler`)."""

    source: str
    code: str | None
    suite: Suite
    limits: Limits
    stdin: str | None

    def program(self) -> tuple[str, bool]:
        """What a guest loads, and whether that is code."""
        return (self.source, False) if self.code is None else (self.code, True)

    def resources(self) -> GuestLimits:
        """What one of this program's guests may use."""
        limits = self.limits
        output = limits.max_output_bytes
        if self.suite.form == "stdio":
            output += 2 * max(len(case.stdout.encode("utf-8", "replace")) for case in self.suite.cases)
        cpu_s = int(2 * limits.program_wall_s) + 2
        return GuestLimits(limits.memory_mb, cpu_s, output, limits.max_reply_bytes)


@dataclass(slots=True)
class SuiteResult:
    """What has been found out about a program so far."""

    verdicts: list[TestResult] = field(default_factory=list)
    syntax_error: SyntaxDiagnosis | None = None
    output: list[str] = field(default_factory=list)
    cpu_s: float = 0.0
    timeouts: int = 0
    crashes: int = 0

    def add(self, part: SuiteResult) -> None:
        """Take over what has been found out with a part of the tests, but for the verdicts."""
        self.syntax_error = part.syntax_error
        self.output += part.output
        self.cpu_s += part.cpu_s


def syntax_diagnosis(answer: list[Any]) -> SyntaxDiagnosis:
    """What a guest's `syntax` says."""
    return SyntaxDiagnosis(clean_text(answer[1]), clean_line(answer[2]), clean_line(answer[3]))


def reported(answer: list[Any]) -> tuple[str, str, int | None]:
    """Type, message and line of a guest's `raise`."""
    name, message, line = answer[1:4]
    return clean_text(name, 80) or "Exception", clean_text(message, _MESSAGE), clean_line(line)


def local(error: BaseException) -> tuple[str, str, None]:
    """An exception of the test itself, raised here."""
    return type(error).__name__, clean_text(text_of(error), _MESSAGE), None


def unit_verdict(wire: Any) -> TestResult:
    """What a guest says of a test method."""
    try:
        status, error_type, message = decode(wire)
    except (ProtocolError, TypeError, ValueError):
        status, error_type, message = "", None, None
    if status == "pass":
        return TestResult("pass")
    if status not in ("fail", "error", "skipped"):
        return TestResult("crash", "ProtocolError", "malformed verdict")
    return TestResult(status, clean_text(error_type, 80), clean_text(message, _MESSAGE))
