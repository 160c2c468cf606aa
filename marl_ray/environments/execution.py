"""The base class of environments that execute code: evidence of an execution, and the facts and wording of feedback."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

from marl_ray.core.episode import Outcome
from marl_ray.environments.abilities import DecidesSolved, all_passed
from marl_ray.environments.base import A, Environment
from marl_ray.sandbox import ExecutionReport, TestResult

if TYPE_CHECKING:
    from marl_ray.config import Config

logger = logging.getLogger(__name__)
SandboxSlice = int | Literal["all"] | None
"""The tests that feedback may mention: the first N, the last N if negative, all if 0, None or "all"."""
LINE_CHARS = 100
"""Maximum characters of a test's source, and of its error with message, in feedback."""
T = TypeVar("T")


class CodeEnvironment(Environment[A], DecidesSolved):
    """An environment whose programs the sandbox executes. `count_untrusted`: see `SandboxConfig`. `sandbox_slice`: the
    tests that feedback may mention, see `ExternalConfig`."""

    def __init__(self, num_agents: int, count_untrusted: bool = True, sandbox_slice: SandboxSlice = 1) -> None:
        super().__init__(num_agents)
        if num_agents < 1:
            raise ValueError(f"num_agents must be at least 1, not {num_agents}")
        self._count_untrusted = count_untrusted
        self._warned = False
        self._slice = sandbox_slice

    @classmethod
    def from_config(cls, config: Config) -> Self:
        return cls(config.num_agents, config.sandbox.count_untrusted, config.external.sandbox_slice)

    def solved(self, attempt: A, outcome: Outcome, tests: str) -> bool:
        """Return whether all tests, or all tests in `sandbox_slice`, pass with a verdict that counts."""
        if tests == "all":
            return all_passed(self, outcome, tests)
        return self._passes_visible(executed_report(outcome), outcome.metrics["tests_passed_rate"])

    def _passes_visible(self, report: ExecutionReport, rate: float) -> bool:
        """Return whether all tests in `sandbox_slice` pass, and so a share `rate` of all tests that is not 0."""
        shown = sliced(range(report.total), self._slice)
        return rate > 0 and self._passing(report).issuperset(shown)

    def _visible(self, last: bool) -> int | None:
        """Return `Program.visible` for an attempt; after the last turn no feedback mentions single tests."""
        return None if last or self._slice == "all" else self._slice

    def _passing(self, report: ExecutionReport) -> frozenset[int]:
        """Return the indices of the tests that pass with a verdict that counts."""
        counting = []
        passing = set()
        for index, test in enumerate(report.tests):
            if not (test.trusted or self._count_untrusted):
                continue  # the program may have forged this verdict
            counting.append(index)
            if test.status == "pass":
                passing.add(index)
        if report.tests and not counting and not self._warned:
            self._warned = True
            logger.warning(
                "no test of a task is trusted, so that no policy can earn its tests: set sandbox.count_untrusted: "
                f"true if programs may forge them, or leave the task out ({shorten(report.tests[0].source)})"
            )
        return frozenset(passing)

    def _pass_rate(self, report: ExecutionReport, runs: bool) -> float:
        """Return the share of tests that pass with a verdict that counts, 0 if the program does not run."""
        if not runs or not report.total:
            return 0.0
        return len(self._passing(report)) / report.total


@dataclass(frozen=True, slots=True)
class ExecutionEvidence:
    """The sandbox's report as an outcome's evidence."""

    report: ExecutionReport

    def data(self) -> dict[str, Any]:
        return {"report": self.report.to_dict()}

    def lines(self) -> list[str]:
        """Return the number of passed tests, and a line for each failed test; messages cannot begin lines."""
        report = self.report
        if report.syntax_error is not None:
            lines = [f"[sandbox] syntax error: {report.syntax_error.message}"]
        else:
            lines = [f"[sandbox] {report.passed} of {report.total} tests passed"]
        for test in report.tests:
            if test.status != "pass":
                error = f"{test.error_type or ''} {test.message or ''}"
                lines.append(f"    {test.status}: {test.source}   {error}")
        return [" ".join(line.splitlines()).rstrip() for line in lines]


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


def executed_report(outcome: Outcome) -> ExecutionReport:
    """Return the report on the joint action's program from any evidence that has one."""
    report = getattr(outcome.evidence, "report", None)
    assert isinstance(report, ExecutionReport), "evidence of an execution"
    return report


def report_of(outcome: Outcome) -> ExecutionReport:
    """Return the report that an outcome was computed from."""
    assert isinstance(outcome.evidence, ExecutionEvidence), "an outcome of this environment"
    return outcome.evidence.report


def locate_syntax_error(report: ExecutionReport, starts: Iterable[tuple[str, int]]) -> SyntaxErrorLocation | None:
    """Return the report's syntax error, relative to the function that contains it. `starts` are the functions with the
    program lines (from 1) on which their code starts."""
    error = report.syntax_error
    if error is None:
        return None
    if error.line is not None:
        # The error belongs to the last function that starts at or above its line.
        for name, start in sorted(starts, key=lambda item: -item[1]):
            if start <= error.line:
                return SyntaxErrorLocation(name, error.line - start + 1, error.column, error.message)
    return SyntaxErrorLocation(None, error.line, error.column, error.message)


def passed(facts: Any, agent: int = 0) -> list[str]:
    """Return the feedback of mode `passed`: whether all levels passed."""
    if facts.all_passed:
        return ["All levels passed"]
    return ["Not all levels passed"]


def sliced(tests: Sequence[T], sandbox_slice: SandboxSlice) -> tuple[T, ...]:
    if not sandbox_slice or sandbox_slice == "all":
        return tuple(tests)
    if sandbox_slice > 0:
        return tuple(tests[:sandbox_slice])
    return tuple(tests[sandbox_slice:])


def describe_syntax(error: SyntaxErrorLocation | None) -> str:
    """Return `OK`, or the location and message of a syntax error."""
    if error is None:
        return "OK"
    text = "error"
    if error.function:
        text += f" in {error.function}"
    if error.line is not None:
        text += f" line {error.line}"
    if error.column is not None:
        text += f" column {error.column}"
    return f"{text}: {shorten(error.message)}"


def describe_failure(test: TestResult) -> str:
    return f"{shorten(test.source)} -> {describe_error(test)}"


def describe_error(test: TestResult) -> str:
    error: str = test.error_type or test.status
    if test.message:
        error += f": {test.message}"
    return shorten(error)


def shorten(text: str) -> str:
    """Return a text on one line of at most LINE_CHARS characters."""
    text = " ".join(text.split())
    if len(text) > LINE_CHARS:
        return text[: LINE_CHARS - 3] + "..."
    return text
