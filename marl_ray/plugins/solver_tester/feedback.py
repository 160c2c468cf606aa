"""The feedback of solver and testers: verdicts on the written tests, and their wording in each external mode.

Feedback contains only the source of an invalid test: the value from the reference would leak answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from marl_ray.environments.code_generation.feedback import FEEDBACK_BY_MODE, Diagnosis
from marl_ray.environments.execution import ExecutionEvidence, describe_failure, shorten
from marl_ray.sandbox import ExecutionReport, TestResult


@dataclass(frozen=True, slots=True)
class WrittenTest:
    """A written test with the verdicts on reference and solution. A test is valid if the reference passes it."""

    reference: TestResult
    solution: TestResult

    @property
    def valid(self) -> bool:
        return self.reference.status == "pass"

    @property
    def exposes_bug(self) -> bool:
        """Whether the test is valid and the solution fails it."""
        return self.valid and self.solution.status != "pass"


@dataclass(frozen=True, slots=True)
class SolverEvidence:
    """An outcome's evidence: the report on the solution with the problem's tests, and each tester's tests."""

    report: ExecutionReport
    written: tuple[tuple[WrittenTest, ...], ...]

    def data(self) -> dict[str, Any]:
        written = []
        for tests in self.written:
            records = []
            for test in tests:
                record = {
                    "test": test.solution.source,
                    "valid": test.valid,
                    "solution": test.solution.status,
                }
                records.append(record)
            written.append(records)
        return {"report": self.report.to_dict(), "written": written}

    def lines(self) -> list[str]:
        """Return the results of the problem's tests and of the written tests."""
        count = 0
        valid = 0
        found = 0
        details = []
        for tests in self.written:
            count += len(tests)
            for test in tests:
                valid += test.valid
                found += test.exposes_bug
                details.append(f"    {_label(test)}: {test.solution.source}")
        summary = f"[tests] {count} written, {valid} valid, {found} that the solution fails"
        return [*ExecutionEvidence(self.report).lines(), summary, *details]


def evidence_from(written: Sequence[tuple[str, ...]], reports: Sequence[ExecutionReport]) -> SolverEvidence:
    """Return the evidence from the reports on the programs of a `SolutionAttempt`."""
    remaining = iter(reports)
    report = next(remaining)
    judged: list[tuple[WrittenTest, ...]] = []
    for tests in written:
        if not tests:  # a tester without tests has no programs
            judged.append(())
            continue
        solution = next(remaining)
        reference = next(remaining)
        judged.append(tuple(map(WrittenTest, reference.tests, solution.tests)))
    return SolverEvidence(report, tuple(judged))


def _label(test: WrittenTest) -> str:
    if test.exposes_bug:
        return "finds"
    if test.valid:
        return "valid"
    return "invalid"


def feedback_lines(mode: str, diagnosis: Diagnosis, written: Sequence[Sequence[WrittenTest]], agent: int) -> list[str]:
    """Return the feedback for an agent; the testers, in the order of `written`, come before the solver."""
    if mode == "passed":
        passed = diagnosis.all_passed and all(written)
        for tests in written:
            for test in tests:
                passed = passed and test.valid and not test.exposes_bug
        if passed:
            return ["All levels passed"]
        return ["Not all levels passed"]
    lines = FEEDBACK_BY_MODE[mode](diagnosis, 0)
    if diagnosis.syntax is not None:
        return lines
    # A tester reads the verdicts on its own tests, the solver all verdicts.
    if agent < len(written):
        written = [written[agent]]
    for tests in written:
        valid = sum(test.valid for test in tests)
        failed = sum(test.exposes_bug for test in tests)
        lines.append(f"written tests: {valid} of {len(tests)} valid, {failed} failed")
        if mode == "level_feedback":
            for test in tests:
                if test.exposes_bug:
                    lines.append(f"failed: {describe_failure(test.solution)}")
            for test in tests:
                if not test.valid:
                    lines.append(f"not valid: {shorten(test.solution.source)}")
    return lines
