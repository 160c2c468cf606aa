"""The feedback of code generation: facts about one joint action, and their wording in each external mode.

The bundled policies were trained on these exact texts, which a golden test fixes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from marl_ray.environments.code_generation.attempt import CodeAttempt
from marl_ray.environments.execution import (
    SandboxSlice,
    SyntaxErrorLocation,
    describe_failure,
    describe_syntax,
    locate_syntax_error,
    passed,
    sliced,
)
from marl_ray.sandbox import ExecutionReport, TestResult


@dataclass(frozen=True, slots=True)
class FunctionStatus:
    """One agent's function. `problem` is the reason why it does not count, empty if it is there and returns a value."""

    name: str
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The facts that feedback may contain about one joint action. `functions` has one status per agent, main's last.
    `tests` are the verdicts in `sandbox_slice`. The last three fields describe how main uses the helpers (see
    `usage`)."""

    functions: tuple[FunctionStatus, ...]
    syntax: SyntaxErrorLocation | None
    tests: tuple[TestResult, ...]
    not_called: tuple[str, ...] = ()
    thin_wrapper: bool = False
    aux_misused: bool = False

    @property
    def passed(self) -> int:
        """Number of visible tests that passed."""
        return sum(test.status == "pass" for test in self.tests)

    @property
    def all_passed(self) -> bool:
        """The program compiles, main counts, and all visible tests, at least one, passed."""
        return self.syntax is None and not self.functions[-1].problem and 0 < len(self.tests) == self.passed


def diagnose(attempt: CodeAttempt, report: ExecutionReport, sandbox_slice: SandboxSlice) -> Diagnosis:
    """Return the facts about a joint action, with the tests in the slice."""
    functions = []
    starts = []
    for part, start in zip(attempt.parts, attempt.starts, strict=True):
        functions.append(FunctionStatus(part.name, part.problem))
        if start:  # 0: the agent contributes no line
            starts.append((part.name, start))
    helpers = [status.name for status in functions[:-1]]
    return Diagnosis(
        functions=tuple(functions),
        syntax=locate_syntax_error(report, starts),
        tests=sliced(report.tests, sandbox_slice),
        not_called=tuple(helper for helper in helpers if helper not in attempt.use.called),
        thin_wrapper=attempt.use.thin_wrapper,
        aux_misused=bool(attempt.use.misused),
    )


def level_feedback(diagnosis: Diagnosis, agent: int) -> list[str]:
    """Return every level in detail; for main (the last agent) also its use of the helpers."""
    lines = []
    for status in diagnosis.functions:
        found = f"missing ({status.problem})" if status.problem else "found"
        lines.append(f"{status.name}: {found}")
    lines.append(f"syntax: {describe_syntax(diagnosis.syntax)}")
    if diagnosis.syntax is not None:
        lines.append("tests: not run")
    else:
        lines.append(f"tests: {diagnosis.passed} of {len(diagnosis.tests)} passed")
        for test in diagnosis.tests:
            if test.status != "pass":
                lines.append(f"failed: {describe_failure(test)}")
    if agent == len(diagnosis.functions) - 1:
        lines += _helper_use(diagnosis)
    return lines


def level_passed(diagnosis: Diagnosis, agent: int) -> list[str]:
    """Return for every level whether it passed, the same for all agents."""
    missing = [status.name for status in diagnosis.functions if status.problem]
    implementation = f"missing {', '.join(missing)}" if missing else "OK"
    total = len(diagnosis.tests)
    if diagnosis.syntax is not None:
        syntax = "incorrect"
        tests = "not run"
    else:
        syntax = "correct"
        if diagnosis.passed == 0:
            tests = "passed none"
        elif diagnosis.passed == total:
            tests = "passed all"
        else:
            tests = f"passed {diagnosis.passed} of {total}"
    lines = [f"implementation: {implementation}", f"syntax: {syntax}", f"tests: {tests}"]
    return lines + _helper_use(diagnosis)


def _helper_use(diagnosis: Diagnosis) -> list[str]:
    """Return how main uses the helpers; nothing without helpers or without main."""
    *helpers, main = diagnosis.functions
    if not helpers or main.problem:
        return []
    faults = [f"{name} not called" for name in diagnosis.not_called]
    if diagnosis.thin_wrapper:
        faults.append("thin wrapper")
    if diagnosis.aux_misused:
        faults.append("result thrown away")
    return [f"aux use: {', '.join(faults) or 'OK'}"]


FEEDBACK_BY_MODE: dict[str, Callable[[Diagnosis, int], list[str]]] = {
    "level_feedback": level_feedback,
    "level_passed": level_passed,
    "passed": passed,
}
