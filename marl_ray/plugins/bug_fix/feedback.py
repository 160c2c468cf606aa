"""The feedback of bug fixing: facts about one joint action for one agent, and their wording in each external mode.

The facts include the other agents' answers, which an agent sees only here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from marl_ray.core.episode import Outcome
from marl_ray.core.text import pluralize
from marl_ray.environments.execution import (
    ExecutionEvidence,
    SandboxSlice,
    SyntaxErrorLocation,
    describe_failure,
    describe_syntax,
    locate_syntax_error,
    passed,
    shorten,
    sliced,
)
from marl_ray.plugins.bug_fix.attempt import RepairAttempt
from marl_ray.plugins.bug_fix.patching import Hunk
from marl_ray.sandbox import ExecutionReport, TestResult

MAX_HUNKS = 5
"""Maximum hunks of a diff in feedback."""


@dataclass(frozen=True, slots=True)
class RepairEvidence:
    """An outcome's evidence: the report on the patched program, and the indices of the tests that passed before."""

    report: ExecutionReport
    passed_before: frozenset[int]

    def data(self) -> dict[str, Any]:
        return {"report": self.report.to_dict(), "passed_before": sorted(self.passed_before)}

    def lines(self) -> list[str]:
        """Return the number of passed tests, and a line for each failed test."""
        first, *failed = ExecutionEvidence(self.report).lines()
        return [f"{first}, {len(self.passed_before)} before the patch", *failed]


@dataclass(frozen=True, slots=True)
class RepairDiagnosis:
    """The facts about a joint action for one agent. `diagnoses`: whether the agent writes the diagnosis. `missing` are
    the roles whose answer contains no function, `refused` the functions with new decorators or defaults, `others` the
    changes of other agents. `tests` are the verdicts in `sandbox_slice` on the patched program, each with whether the
    test passed before; no other fact depends on other tests."""

    attempt: RepairAttempt
    diagnoses: bool
    missing: tuple[str, ...]
    refused: tuple[str, ...]
    others: tuple[Hunk, ...]
    syntax: SyntaxErrorLocation | None
    tests: tuple[tuple[TestResult, bool], ...]

    @property
    def small(self) -> bool:
        """Whether the patch changes something, and no more tokens than needed if that number is known."""
        size = self.attempt.tokens
        return 0 < size <= (self.attempt.needed or size)

    def results(self, passed_before: bool) -> list[bool]:
        """Return for each test that passed before, or that did not, whether the test passes now."""
        return [test.status == "pass" for test, before in self.tests if before is passed_before]

    @property
    def all_passed(self) -> bool:
        """Whether all levels passed, as far as the visible tests, at least one, show."""
        patched = not self.missing and self.syntax is None and self.small
        tests = bool(self.tests) and all(test.status == "pass" for test, _ in self.tests)
        return patched and tests and (self.attempt.diagnosis is None or self.attempt.diagnosed)


def diagnose_repair(
    attempt: RepairAttempt, outcome: Outcome, patching: Sequence[str], agent: int, sandbox_slice: SandboxSlice
) -> RepairDiagnosis:
    """Return the facts for an agent. `patching` are the roles of the patchers."""
    evidence = outcome.evidence
    assert isinstance(evidence, RepairEvidence), "an outcome of this environment"
    # The first agent writes the diagnosis, if there is one.
    patcher = agent - (attempt.diagnosis is not None)
    missing = []
    refused: list[str] = []
    for role, patch in zip(patching, attempt.patches, strict=True):
        refused += patch.refused
        if not patch.parts:
            missing.append(role)
    own_lines: set[int] = set()
    if patcher >= 0:
        for name in attempt.patches[patcher].names:
            own_lines.update(attempt.buggy.functions[name])
    tests: list[tuple[TestResult, bool]] = []
    for number, test in enumerate(evidence.report.tests):
        tests.append((test, number in evidence.passed_before))
    return RepairDiagnosis(
        attempt,
        diagnoses=patcher < 0,
        missing=tuple(missing),
        refused=tuple(refused),
        others=tuple(hunk for hunk in attempt.diff.hunks if hunk.first not in own_lines),
        syntax=locate_syntax_error(evidence.report, attempt.starts.items()),
        tests=sliced(tests, sandbox_slice),
    )


def level_feedback(facts: RepairDiagnosis) -> list[str]:
    """Return every level in detail, and the other agents' answers: the diagnosis and the changes."""
    lines = _diagnosis(facts)
    for role in facts.missing:
        lines.append(f"{role}: missing (no function that it may change)")
    for name in facts.refused:
        lines.append(f"{name}: refused (a new decorator or default; change the body)")
    lines.append(f"syntax: {describe_syntax(facts.syntax)}")
    if facts.syntax is not None:
        lines.append("tests: not run")
    else:
        lines += _tests(facts, _share)
        for test, _ in facts.tests:
            if test.status != "pass":
                lines.append(f"failed: {describe_failure(test)}")
    lines.append(f"edit: {_size(facts)}")
    for hunk in facts.others[:MAX_HUNKS]:
        lines.append(f"changed: {_hunk(hunk)}")
    return lines


def level_passed(facts: RepairDiagnosis) -> list[str]:
    """Return for every level whether it passed."""
    attempt = facts.attempt
    lines = ["patch: OK"]
    if facts.missing:
        lines = [f"patch: missing {', '.join(facts.missing)}"]
    if facts.syntax is None:
        lines += ["syntax: correct", *_tests(facts, _part)]
    else:
        lines += ["syntax: incorrect", "tests: not run"]
    if not attempt.tokens:
        lines.append("edit: nothing changed")
    elif attempt.needed and facts.small:
        lines.append("edit: as small as needed")
    elif attempt.needed:  # without a reference no number is known
        lines.append("edit: larger than needed")
    if attempt.diagnosis is not None:
        problem = attempt.diagnosis.problem
        lines.append(f"diagnosis: {'missing' if problem else _named(facts)}")
    return lines


def _diagnosis(facts: RepairDiagnosis) -> list[str]:
    """Return the diagnosis for a patcher, and its success for its author."""
    report = facts.attempt.diagnosis
    if report is None:
        return []
    if report.problem:
        return [f"diagnosis: missing ({report.problem})"]
    if facts.diagnoses:
        return [f"diagnosis: {_named(facts)}"]
    line = facts.attempt.buggy.lines[report.line - 1].strip()
    return [f"diagnosis: line {report.line} `{shorten(line)}`: {shorten(report.why)}"]


def _named(facts: RepairDiagnosis) -> str:
    article = "a" if facts.attempt.diagnosed else "no"
    if facts.attempt.reference:
        return f"names {article} line that has to change"
    return f"names {article} line that the patch changes"


def _size(facts: RepairDiagnosis) -> str:
    if not facts.attempt.tokens:
        return "nothing changed"
    changed = f"{pluralize(facts.attempt.tokens, 'token')} changed"
    if facts.attempt.needed:
        changed += f", {facts.attempt.needed} needed"
    return changed


def _hunk(hunk: Hunk) -> str:
    is_line = hunk.first == hunk.last
    if not hunk.old:
        place = f"beside line {hunk.first}" if is_line else f"between lines {hunk.first} and {hunk.last}"
        return f"{place} added {_lines(hunk.new)}"
    place = f"line {hunk.first}" if is_line else f"lines {hunk.first} to {hunk.last}"
    return f"{place} {_lines(hunk.old)} -> {_lines(hunk.new)}"


def _lines(lines: Sequence[str]) -> str:
    if not lines:
        return "nothing"
    text = f"`{shorten(lines[0].strip())}`"
    if len(lines) > 1:
        text += f" and {pluralize(len(lines) - 1, 'line')} more"
    return text


def _tests(facts: RepairDiagnosis, summarise: Callable[[Sequence[bool]], str]) -> list[str]:
    """Return the shares of tests that still pass and that pass now."""
    kept = facts.results(passed_before=True)
    fixed = facts.results(passed_before=False)
    lines = []
    if kept:
        lines.append(f"tests that passed before: {summarise(kept)} still pass")
    if fixed:
        lines.append(f"tests that failed before: {summarise(fixed)} pass now")
    return lines


def _share(results: Sequence[bool]) -> str:
    return f"{sum(results)} of {len(results)}"


def _part(results: Sequence[bool]) -> str:
    if all(results):
        return "all"
    if not any(results):
        return "none"
    return _share(results)


FEEDBACK_BY_MODE: dict[str, Callable[[RepairDiagnosis], list[str]]] = {
    "level_feedback": level_feedback,
    "level_passed": level_passed,
    "passed": passed,
}
