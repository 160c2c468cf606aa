"""What came of a joint action: the problem's verdict on the solution, and what is known of each written test."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from marl_ray.core.episode import Outcome
from marl_ray.environments.code_generation.evidence import Executed
from marl_ray.sandbox import ExecutionReport, TestResult


@dataclass(frozen=True, slots=True)
class WrittenTest:
    """A test with the verdicts on reference and solution. It is valid if the reference passes it."""

    reference: TestResult
    solution: TestResult

    @property
    def source(self) -> str:
        return self.solution.source

    @property
    def valid(self) -> bool:
        return self.reference.status == "pass"

    @property
    def finds(self) -> bool:
        """It is valid, and the solution does not pass it."""
        return self.valid and self.solution.status != "pass"


@dataclass(frozen=True, slots=True)
class SolutionFindings:
    """An outcome's evidence: the report on the solution and the problem's own tests, and each writer's tests."""

    report: ExecutionReport
    written: tuple[tuple[WrittenTest, ...], ...]

    def data(self) -> dict[str, Any]:
        """Both as plain data."""
        tests = [[{"test": t.source, "valid": t.valid, "solution": t.solution.status} for t in w] for w in self.written]
        return {"report": self.report.to_dict(), "written": tests}

    def lines(self) -> list[str]:
        """What came of the problem's tests, and of those that were written."""
        every = [test for tests in self.written for test in tests]
        counts = f"{sum(t.valid for t in every)} valid, {sum(t.finds for t in every)} that the solution fails"
        said = [f"    {_word(test)}: {test.source}" for test in every]
        return [*Executed(self.report).lines(), f"[tests] {len(every)} written, {counts}", *said]


def findings(written: Sequence[tuple[str, ...]], reports: Sequence[ExecutionReport]) -> SolutionFindings:
    """Of the reports on the programs of a `SolutionAttempt`."""
    own, *rest = reports
    pairs = iter(zip(rest[1::2], rest[0::2], strict=True))
    return SolutionFindings(own, tuple(_tests(*next(pairs)) if tests else () for tests in written))


def findings_of(outcome: Outcome) -> SolutionFindings:
    """What the outcome was made from."""
    assert isinstance(outcome.evidence, SolutionFindings), "an outcome of this environment"
    return outcome.evidence


def _tests(reference: ExecutionReport, solution: ExecutionReport) -> tuple[WrittenTest, ...]:
    return tuple(WrittenTest(*both) for both in zip(reference.tests, solution.tests, strict=True))


def _word(test: WrittenTest) -> str:
    return "finds" if test.finds else "valid" if test.valid else "invalid"
