"""What is found out about one joint action, as facts: `feedback` puts them into words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from marl_ray.environments.code_generation.attempt import CodeAttempt
from marl_ray.sandbox import ExecutionReport, TestResult

SandboxSlice = int | Literal["all"] | None
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class FunctionStatus:
    """One agent's function. `problem` says why it does not count; empty: it is there and returns a value."""

    name: str
    problem: str = ""

    @property
    def found(self) -> bool:
        return not self.problem


@dataclass(frozen=True, slots=True)
class SyntaxProblem:
    """A syntax error of the joint program. `line` counts in `function`'s own code where that is known."""

    function: str | None
    line: int | None
    column: int | None
    message: str


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What feedback may say about one joint action.

    `functions` has one status per agent, main last. `tests` are the verdicts that feedback may see, already
    cut by `sandbox_slice`. The last three speak of main: helpers it does not call, whether it only passes a
    helper's result on, and whether it throws a helper's result away.
    """

    functions: tuple[FunctionStatus, ...]
    syntax: SyntaxProblem | None
    tests: tuple[TestResult, ...]
    not_called: tuple[str, ...] = ()
    thin_wrapper: bool = False
    aux_misused: bool = False

    @property
    def main(self) -> FunctionStatus:
        return self.functions[-1]

    @property
    def helpers(self) -> tuple[FunctionStatus, ...]:
        return self.functions[:-1]

    @property
    def passed(self) -> int:
        """How many of the visible tests passed."""
        return sum(test.status == "pass" for test in self.tests)

    @property
    def all_passed(self) -> bool:
        """Syntax, main and every visible test, of which there is at least one."""
        return self.syntax is None and self.main.found and 0 < len(self.tests) == self.passed


def diagnose(attempt: CodeAttempt, report: ExecutionReport, sandbox_slice: SandboxSlice) -> Diagnosis:
    """The facts that feedback may tell of: all of them, but of the tests only those in the slice."""
    *helpers, _ = parts = attempt.parts
    use = attempt.use
    return Diagnosis(
        functions=tuple(FunctionStatus(part.name, part.problem) for part in parts),
        syntax=_syntax_problem(attempt, report),
        tests=sliced(report.tests, sandbox_slice),
        not_called=tuple(helper.name for helper in helpers if helper.name not in use.called),
        thin_wrapper=use.thin_wrapper,
        aux_misused=bool(use.misused),
    )


def _syntax_problem(attempt: CodeAttempt, report: ExecutionReport) -> SyntaxProblem | None:
    """The report's syntax error, its line counted in the code of the agent who wrote it."""
    error = report.syntax_error
    if error is None:
        return None
    for part, start in reversed(list(zip(attempt.parts, attempt.starts, strict=True))):
        if error.line is not None and 0 < start <= error.line:
            return SyntaxProblem(part.name, error.line - start + 1, error.column, error.message)
    return SyntaxProblem(None, error.line, error.column, error.message)


def sliced(tests: Sequence[T], sandbox_slice: SandboxSlice) -> tuple[T, ...]:
    """The verdicts that feedback may see: first N; last N when negative; 0, None or "all": every one."""
    if not sandbox_slice or sandbox_slice == "all":
        return tuple(tests)
    return tuple(tests[:sandbox_slice] if sandbox_slice > 0 else tests[sandbox_slice:])
