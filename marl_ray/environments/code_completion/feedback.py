"""The feedback of code completion: facts about one joint action, and their wording in each external mode."""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from marl_ray.environments.code_completion.attempt import ClassAttempt
from marl_ray.environments.code_generation.extraction import parse, without_docstring
from marl_ray.environments.execution import (
    SandboxSlice,
    SyntaxErrorLocation,
    describe_error,
    describe_syntax,
    locate_syntax_error,
    sliced,
)
from marl_ray.sandbox import ExecutionReport, TestResult

MAX_FAILURES = 8
"""Maximum failed tests in feedback. A class has up to 40 tests, and the prompt also contains the skeleton."""
TEST_CHARS = 200
"""Maximum characters of a test's text, of which the end, with the expected value, is kept."""


@dataclass(frozen=True, slots=True)
class TestText:
    """A test's statements on one line, and the attributes that they mention, which include the tested methods."""

    __test__ = False  # keeps pytest from collecting the class

    line: str
    mentions: frozenset[str]


@functools.lru_cache(maxsize=256)
def unit_tests(tests: str) -> Mapping[str, TestText]:
    """Return the tests of the unittest classes in a source, by their name in reports, `Class.test`."""
    tree = parse(tests)
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)] if tree is not None else []
    return {
        f"{node.name}.{test.name}": _text(test)
        for node in classes
        for test in node.body
        if isinstance(test, ast.FunctionDef | ast.AsyncFunctionDef) and test.name.startswith("test")
    }


def parse_test(tests: str | tuple[str, ...], source: str) -> TestText:
    """Return the text of the test with the name or source `source` in a report."""
    known = unit_tests(tests) if isinstance(tests, str) else {}
    if source in known:
        return known[source]
    tree = parse(source)
    return TestText(" ".join(source.split()), _attributes(tree) if tree is not None else frozenset())


def _text(test: ast.FunctionDef | ast.AsyncFunctionDef) -> TestText:
    lines = [" ".join(ast.unparse(node).split()) for node in without_docstring(test.body)]
    return TestText("; ".join(lines), _attributes(test))


def _attributes(tree: ast.AST) -> frozenset[str]:
    return frozenset(node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute))


@dataclass(frozen=True, slots=True)
class Failure:
    """A failed test and its text."""

    test: TestResult
    text: TestText


@dataclass(frozen=True, slots=True)
class ClassDiagnosis:
    """The facts that feedback may contain about one joint action.

    `problems` are the reasons why each agent's methods do not count, empty if they do. `foreign` are the methods that
    each agent wrote for another agent, `overlap` the methods that more than one agent wrote. `total` is the number of
    visible tests, all of which passed except for `failures`.
    """

    problems: tuple[dict[str, str], ...]
    foreign: tuple[tuple[str, ...], ...]
    overlap: tuple[str, ...]
    syntax: SyntaxErrorLocation | None
    total: int
    failures: tuple[Failure, ...]

    @property
    def missing(self) -> tuple[str, ...]:
        """All methods that do not count."""
        return tuple(name for methods in self.problems for name, problem in methods.items() if problem)

    @property
    def passed(self) -> int:
        """Number of visible tests that passed."""
        return self.total - len(self.failures)

    @property
    def all_passed(self) -> bool:
        """Whether all methods are there once, the program compiles, and all visible tests, at least one, passed."""
        complete = self.syntax is None and not self.missing and not self.overlap
        return complete and self.total > 0 and not self.failures

    def failures_for(self, agent: int) -> list[Failure]:
        """Return the failed tests, starting with tests that mention the agent's own methods."""
        own = self.problems[agent].keys()
        return sorted(self.failures, key=lambda failure: own.isdisjoint(failure.text.mentions))


def diagnose(attempt: ClassAttempt, report: ExecutionReport, sandbox_slice: SandboxSlice) -> ClassDiagnosis:
    """Return the facts about a joint action, with the tests in the slice."""
    tests = sliced(report.tests, sandbox_slice)
    problems = [{name: attempt.problem(agent, name) for name in own} for agent, own in enumerate(attempt.shares)]
    return ClassDiagnosis(
        problems=tuple(problems),
        foreign=tuple(attempt.foreign(agent) for agent in range(len(attempt.shares))),
        overlap=attempt.overlap,
        syntax=locate_syntax_error(report, attempt.starts.items()),
        total=len(tests),
        failures=tuple(
            Failure(test, parse_test(attempt.program.tests, test.source)) for test in tests if test.status != "pass"
        ),
    )


def level_feedback(diagnosis: ClassDiagnosis, agent: int) -> list[str]:
    """Return every level in detail: the agent's own methods, and the failed tests that mention them first."""
    own = diagnosis.problems[agent]
    lines = [f"{name}: missing ({problem})" if problem else f"{name}: found" for name, problem in own.items()]
    if diagnosis.foreign[agent]:
        lines.append(f"not yours: {', '.join(diagnosis.foreign[agent])}")
    others = [name for name in diagnosis.missing if name not in own]
    if others:
        lines.append(f"missing from others: {', '.join(others)}")
    lines.append(f"syntax: {describe_syntax(diagnosis.syntax)}")
    if diagnosis.syntax is not None:
        return [*lines, "tests: not run"]
    lines.append(f"tests: {diagnosis.passed} of {diagnosis.total} passed")
    failures = diagnosis.failures_for(agent)
    lines += [f"failed: {_failure(failure)}" for failure in failures[:MAX_FAILURES]]
    return lines + [f"failed: {len(failures) - MAX_FAILURES} more"] * (len(failures) > MAX_FAILURES)


def level_passed(diagnosis: ClassDiagnosis, agent: int) -> list[str]:
    """Return for every level whether it passed, the same for all agents."""
    lines = [
        f"methods: {_join_or(diagnosis.missing, 'OK', 'missing ')}",
        f"overlap: {_join_or(diagnosis.overlap, 'none', '')}",
    ]
    if diagnosis.syntax is not None:
        return [*lines, "syntax: incorrect", "tests: not run"]
    total, passed = diagnosis.total, diagnosis.passed
    some = "passed all" if passed == total else f"passed {passed} of {total}"
    return [*lines, "syntax: correct", f"tests: {some if passed else 'passed none'}"]


def passed(diagnosis: ClassDiagnosis, agent: int) -> list[str]:
    """Return whether all levels passed."""
    return ["All levels passed" if diagnosis.all_passed else "Not all levels passed"]


def _join_or(names: Sequence[str], none: str, some: str) -> str:
    return some + ", ".join(names) if names else none


def _failure(failure: Failure) -> str:
    line = failure.text.line
    shown = line if len(line) <= TEST_CHARS else "..." + line[3 - TEST_CHARS :]
    return f"{shown} -> {describe_error(failure.test)}"


FEEDBACK_BY_MODE: dict[str, Callable[[ClassDiagnosis, int], list[str]]] = {
    "level_feedback": level_feedback,
    "level_passed": level_passed,
    "passed": passed,
}
