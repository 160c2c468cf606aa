"""What feedback may tell one agent of a joint action, as facts: `feedback` puts them into words.

What another agent answered is among them: this is the only way to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from marl_ray.core.episode import Outcome
from marl_ray.environments.bug_fix.attempt import RepairAttempt
from marl_ray.environments.bug_fix.bug_report import BugReport
from marl_ray.environments.bug_fix.edits import Edit, Hunk
from marl_ray.environments.code_generation.diagnosis import SandboxSlice, SyntaxProblem, sliced
from marl_ray.environments.code_generation.evidence import Executed
from marl_ray.sandbox import ExecutionReport, TestResult


@dataclass(frozen=True, slots=True)
class Repaired:
    """An outcome's evidence: the sandbox's report on the patched program, and which tests passed before, by place."""

    report: ExecutionReport
    passed_before: frozenset[int]

    def data(self) -> dict[str, Any]:
        """Both as plain data."""
        return {"report": self.report.to_dict(), "passed_before": sorted(self.passed_before)}

    def lines(self) -> list[str]:
        """What came of the tests, and each that failed."""
        first, *failed = Executed(self.report).lines()
        return [f"{first}, {len(self.passed_before)} before the patch", *failed]


@dataclass(frozen=True, slots=True)
class RepairFacts:
    """The facts for one agent; `diagnoses`: it is the one who diagnoses.

    `diagnosis` is None where nobody was asked for one; `diagnosed_line` is the text of the line that it names, and
    `named` whether the patch changes it. `missing` are the roles whose answer holds no function; `others` is what other
    agents change. `tests` are verdicts on the patched program, each with whether the test passed before, cut by
    `sandbox_slice`: nothing here depends on another test.
    """

    diagnoses: bool
    diagnosis: BugReport | None
    diagnosed_line: str
    named: bool
    missing: tuple[str, ...]
    edit: Edit
    needed: int
    others: tuple[Hunk, ...]
    syntax: SyntaxProblem | None
    tests: tuple[tuple[TestResult, bool], ...]

    @property
    def small(self) -> bool:
        """Something was changed, and no more than is needed, if that is known."""
        return 0 < self.edit.size <= (self.needed or self.edit.size)

    @property
    def kept(self) -> list[bool]:
        """Of the tests that passed before, whether each still does."""
        return [test.status == "pass" for test, before in self.tests if before]

    @property
    def fixed(self) -> list[bool]:
        """Of the tests that did not pass before, whether each does now."""
        return [test.status == "pass" for test, before in self.tests if not before]

    @property
    def all_passed(self) -> bool:
        """Every level, as far as it shows in these tests, of which there is at least one."""
        patched = not self.missing and self.syntax is None and self.small
        tests = bool(self.tests) and all(self.kept) and all(self.fixed)
        return patched and tests and (self.diagnosis is None or self.named)


def repair_facts(
    attempt: RepairAttempt, outcome: Outcome, roles: Sequence[str], agent: int, sandbox_slice: SandboxSlice
) -> RepairFacts:
    """The facts for an agent. `roles` are all agents'."""
    assert isinstance(outcome.evidence, Repaired), "an outcome of this environment"
    report, before = outcome.evidence.report, outcome.evidence.passed_before
    patching = roles[len(roles) - len(attempt.patches) :]
    own = agent - (len(roles) - len(patching))
    names = attempt.patches[own].names if own >= 0 else ()
    spans = [attempt.buggy.functions[name] for name in names]
    diagnosis = attempt.diagnosis
    return RepairFacts(
        diagnoses=own < 0,
        diagnosis=diagnosis,
        diagnosed_line=attempt.buggy.lines[diagnosis.line - 1] if diagnosis is not None and diagnosis.in_form else "",
        named=attempt.diagnosed,
        missing=tuple(role for role, patch in zip(patching, attempt.patches, strict=True) if not patch.given),
        edit=attempt.edit,
        needed=attempt.needed,
        others=tuple(hunk for hunk in attempt.edit.hunks if not any(hunk.first in span for span in spans)),
        syntax=_syntax_problem(attempt, report),
        tests=sliced([(test, number in before) for number, test in enumerate(report.tests)], sandbox_slice),
    )


def _syntax_problem(attempt: RepairAttempt, report: ExecutionReport) -> SyntaxProblem | None:
    """The report's syntax error, its line counted in the function that has it."""
    error = report.syntax_error
    if error is None:
        return None
    for name, start in reversed(list(attempt.starts.items())):
        if error.line is not None and start <= error.line:
            return SyntaxProblem(name, error.line - start + 1, error.column, error.message)
    return SyntaxProblem(None, error.line, error.column, error.message)
