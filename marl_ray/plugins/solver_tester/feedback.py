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
        tests = [
            [{"test": t.solution.source, "valid": t.valid, "solution": t.solution.status} for t in w]
            for w in self.written
        ]
        return {"report": self.report.to_dict(), "written": tests}

    def lines(self) -> list[str]:
        """Return the results of the problem's tests and of the written tests."""
        every = [test for tests in self.written for test in tests]
        counts = f"{sum(t.valid for t in every)} valid, {sum(t.exposes_bug for t in every)} that the solution fails"
        details = [f"    {_label(test)}: {test.solution.source}" for test in every]
        return [*ExecutionEvidence(self.report).lines(), f"[tests] {len(every)} written, {counts}", *details]


def evidence_from(written: Sequence[tuple[str, ...]], reports: Sequence[ExecutionReport]) -> SolverEvidence:
    """Return the evidence from the reports on the programs of a `SolutionAttempt`."""
    own, *rest = reports
    pairs = ((reference.tests, solution.tests) for solution, reference in zip(rest[0::2], rest[1::2], strict=True))
    return SolverEvidence(own, tuple(tuple(map(WrittenTest, *next(pairs))) if tests else () for tests in written))


def _label(test: WrittenTest) -> str:
    return "finds" if test.exposes_bug else "valid" if test.valid else "invalid"


def feedback_lines(mode: str, diagnosis: Diagnosis, written: Sequence[Sequence[WrittenTest]], agent: int) -> list[str]:
    """Return the feedback for an agent; the testers, in the order of `written`, come before the solver."""
    if mode == "passed":
        every = [test for tests in written for test in tests]
        passed = all(written) and all(test.valid and not test.exposes_bug for test in every)
        return ["All levels passed" if diagnosis.all_passed and passed else "Not all levels passed"]
    lines = FEEDBACK_BY_MODE[mode](diagnosis, 0)
    if diagnosis.syntax is not None:
        return lines
    own = [written[agent]] if agent < len(written) else written
    return lines + [line for tests in own for line in (_detailed(tests) if mode == "level_feedback" else _brief(tests))]


def _brief(tests: Sequence[WrittenTest]) -> list[str]:
    valid = sum(test.valid for test in tests)
    return [f"written tests: {valid} of {len(tests)} valid, {sum(test.exposes_bug for test in tests)} failed"]


def _detailed(tests: Sequence[WrittenTest]) -> list[str]:
    failed = [f"failed: {describe_failure(test.solution)}" for test in tests if test.exposes_bug]
    return [
        *_brief(tests),
        *failed,
        *(f"not valid: {shorten(test.solution.source)}" for test in tests if not test.valid),
    ]
