"""What is found out about one joint action, as facts: `feedback` puts them into words."""

from __future__ import annotations

from dataclasses import dataclass

from marl_ray.environments.code_completion.attempt import ClassAttempt
from marl_ray.environments.code_completion.concerns import TestText, text_of
from marl_ray.environments.code_generation.diagnosis import SandboxSlice, SyntaxProblem, sliced
from marl_ray.sandbox import ExecutionReport, TestResult


@dataclass(frozen=True, slots=True)
class Failure:
    """A test that did not pass, and what it does."""

    test: TestResult
    text: TestText


@dataclass(frozen=True, slots=True)
class ClassDiagnosis:
    """What feedback may say about one joint action.

    `problems` say of each agent's methods why they do not count, empty if they do. `foreign` are the methods that
    each agent wrote and another one was to write, `overlap` those that more than one wrote. Tests are those that
    feedback may see: `total` of them, all but the `failures` passed.
    """

    problems: tuple[dict[str, str], ...]
    foreign: tuple[tuple[str, ...], ...]
    overlap: tuple[str, ...]
    syntax: SyntaxProblem | None
    total: int
    failures: tuple[Failure, ...]

    @property
    def missing(self) -> tuple[str, ...]:
        """All methods that do not count."""
        return tuple(name for methods in self.problems for name, problem in methods.items() if problem)

    @property
    def passed(self) -> int:
        """How many of the visible tests passed."""
        return self.total - len(self.failures)

    @property
    def all_passed(self) -> bool:
        """Every level: all methods, none of them twice, syntax, and every visible test, of which there is at least
        one."""
        whole = self.syntax is None and not self.missing and not self.overlap
        return whole and self.total > 0 and not self.failures

    def failures_for(self, agent: int) -> list[Failure]:
        """The failed tests, those that are about the agent's own methods first."""
        own = self.problems[agent].keys()
        return sorted(self.failures, key=lambda failure: own.isdisjoint(failure.text.mentions))


def diagnose(attempt: ClassAttempt, report: ExecutionReport, sandbox_slice: SandboxSlice) -> ClassDiagnosis:
    """The facts that feedback may tell of: all of them, but of the tests only those in the slice."""
    tests = sliced(report.tests, sandbox_slice)
    problems = [{name: attempt.problem(agent, name) for name in own} for agent, own in enumerate(attempt.shares)]
    return ClassDiagnosis(
        problems=tuple(problems),
        foreign=tuple(attempt.foreign(agent) for agent in range(len(attempt.shares))),
        overlap=attempt.overlap,
        syntax=_syntax_problem(attempt, report),
        total=len(tests),
        failures=tuple(
            Failure(test, text_of(attempt.program.tests, test.source)) for test in tests if test.status != "pass"
        ),
    )


def _syntax_problem(attempt: ClassAttempt, report: ExecutionReport) -> SyntaxProblem | None:
    """The report's syntax error, its line counted in the method that has it."""
    error = report.syntax_error
    if error is None:
        return None
    for name, start in sorted(attempt.starts.items(), key=lambda item: -item[1]):
        if error.line is not None and start <= error.line:
            return SyntaxProblem(name, error.line - start + 1, error.column, error.message)
    return SyntaxProblem(None, error.line, error.column, error.message)
