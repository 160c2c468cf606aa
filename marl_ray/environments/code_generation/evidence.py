"""What is kept of an execution: the report, for feedback and for the records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from marl_ray.core.episode import Outcome
from marl_ray.sandbox import ExecutionReport


@dataclass(frozen=True, slots=True)
class Executed:
    """The sandbox's report as an outcome's evidence."""

    report: ExecutionReport

    def data(self) -> dict[str, Any]:
        """The report as plain data."""
        return {"report": self.report.to_dict()}

    def lines(self) -> list[str]:
        """What came of the tests, and each that failed."""
        report = self.report
        if report.syntax_error is not None:
            found = f"[sandbox] syntax error: {report.syntax_error.message}"
        else:
            found = f"[sandbox] {report.passed} of {report.total} tests passed"
        failed = [
            f"    {t.status}: {t.source}   {t.error_type or ''} {t.message or ''}".rstrip()
            for t in report.tests
            if t.status != "pass"
        ]
        return [found, *failed]


def counts_of(report: ExecutionReport) -> dict[str, int]:
    """What the step's metrics count of an execution."""
    return {
        "sandbox/untrusted": int(not report.trusted),
        "sandbox/timeouts": int(any(test.status == "timeout" for test in report.tests)),
    }


def report_of(outcome: Outcome) -> ExecutionReport:
    """The report that the outcome was made from."""
    assert isinstance(outcome.evidence, Executed), "an outcome of this environment"
    return outcome.evidence.report
