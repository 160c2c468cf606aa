"""What environments that execute code share: evidence of an execution, and the facts and wording of feedback on it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from marl_ray.core.episode import Outcome
from marl_ray.sandbox import ExecutionReport, TestResult

SandboxSlice = int | Literal["all"] | None
"""The tests that feedback may mention: the first N, the last N if negative, all if 0, None or "all"."""
LINE_CHARS = 100
"""Maximum characters of a test's source, and of its error with message, in feedback."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ExecutionEvidence:
    """The sandbox's report as an outcome's evidence."""

    report: ExecutionReport

    def data(self) -> dict[str, Any]:
        """Return the report as plain data."""
        return {"report": self.report.to_dict()}

    def lines(self) -> list[str]:
        """Return the number of passed tests, and a line for each failed test."""
        report = self.report
        if report.syntax_error is not None:
            summary = f"[sandbox] syntax error: {report.syntax_error.message}"
        else:
            summary = f"[sandbox] {report.passed} of {report.total} tests passed"
        failed = [
            f"    {t.status}: {t.source}   {t.error_type or ''} {t.message or ''}".rstrip()
            for t in report.tests
            if t.status != "pass"
        ]
        return [summary, *failed]


@dataclass(frozen=True, slots=True)
class SyntaxErrorLocation:
    """A syntax error of an executed program. `line` is relative to the code of `function` if that is known."""

    function: str | None
    line: int | None
    column: int | None
    message: str


def execution_counts(report: ExecutionReport) -> dict[str, int]:
    """Return the counts of an execution for the step metrics."""
    return {
        "sandbox/untrusted": int(not report.trusted),
        "sandbox/timeouts": int(any(test.status == "timeout" for test in report.tests)),
    }


def report_of(outcome: Outcome) -> ExecutionReport:
    """Return the report that an outcome was computed from."""
    assert isinstance(outcome.evidence, ExecutionEvidence), "an outcome of this environment"
    return outcome.evidence.report


def locate_syntax_error(report: ExecutionReport, starts: Iterable[tuple[str, int]]) -> SyntaxErrorLocation | None:
    """Return the report's syntax error, relative to the function that contains it.

    `starts` are the functions with the program lines (from 1) on which their code starts.
    """
    error = report.syntax_error
    if error is None:
        return None
    for name, start in sorted(starts, key=lambda item: -item[1]):
        if error.line is not None and start <= error.line:
            return SyntaxErrorLocation(name, error.line - start + 1, error.column, error.message)
    return SyntaxErrorLocation(None, error.line, error.column, error.message)


def visible_tests(sandbox_slice: SandboxSlice, last: bool) -> int | None:
    """Return `Program.visible` for an attempt; after the last turn no feedback mentions single tests."""
    return None if last or sandbox_slice == "all" else sandbox_slice


def sliced(tests: Sequence[T], sandbox_slice: SandboxSlice) -> tuple[T, ...]:
    """Return the tests in the slice."""
    if not sandbox_slice or sandbox_slice == "all":
        return tuple(tests)
    return tuple(tests[:sandbox_slice] if sandbox_slice > 0 else tests[sandbox_slice:])


def describe_syntax(error: SyntaxErrorLocation | None) -> str:
    """Return `OK`, or the location and message of a syntax error."""
    if error is None:
        return "OK"
    where = f" in {error.function}" if error.function else ""
    line = "" if error.line is None else f" line {error.line}"
    column = "" if error.column is None else f" column {error.column}"
    return f"error{where}{line}{column}: {shorten(error.message)}"


def describe_failure(test: TestResult) -> str:
    """Return a failed test and its error."""
    return f"{shorten(test.source)} -> {describe_error(test)}"


def describe_error(test: TestResult) -> str:
    """Return the error of a failed test."""
    error = test.error_type or test.status
    return shorten(f"{error}: {test.message}" if test.message else error)


def shorten(text: str) -> str:
    """Return a text on one line of at most LINE_CHARS characters."""
    text = " ".join(text.split())
    return text if len(text) <= LINE_CHARS else text[: LINE_CHARS - 3] + "..."
