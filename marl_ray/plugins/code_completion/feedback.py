"""The feedback of code completion: facts about one joint action, and their wording in each external mode."""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from marl_ray.environments.code_generation.extraction import parse, without_docstring
from marl_ray.environments.execution import (
    SandboxSlice,
    SyntaxErrorLocation,
    describe_error,
    describe_syntax,
    locate_syntax_error,
    passed,
    sliced,
)
from marl_ray.plugins.code_completion.attempt import ClassAttempt
from marl_ray.plugins.code_completion.skeleton import attributes_in, methods_of
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
    texts = {}
    for node in tree.body if tree is not None else ():
        if not isinstance(node, ast.ClassDef):
            continue
        for test in methods_of(node):
            if test.name.startswith("test"):
                lines = []
                for statement in without_docstring(test.body):
                    lines.append(" ".join(ast.unparse(statement).split()))
                texts[f"{node.name}.{test.name}"] = TestText("; ".join(lines), attributes_in(test))
    return texts


def parse_test(tests: str | tuple[str, ...], source: str) -> TestText:
    """Return the text of the test with the name or source `source` in a report."""
    if isinstance(tests, str) and source in unit_tests(tests):
        return unit_tests(tests)[source]
    tree = parse(source)
    mentions = frozenset[str]()
    if tree is not None:
        mentions = attributes_in(tree)
    return TestText(" ".join(source.split()), mentions)


Failure = tuple[TestResult, TestText]
"""A failed test and its text."""


@dataclass(frozen=True, slots=True)
class ClassDiagnosis:
    """The facts that feedback may contain about one joint action. `problems` are the reasons why each agent's methods
    do not count, empty if they do. `total` is the number of visible tests, all of which passed except for
    `failures`."""

    attempt: ClassAttempt
    problems: tuple[dict[str, str], ...]
    syntax: SyntaxErrorLocation | None
    total: int
    failures: tuple[Failure, ...]

    @property
    def missing(self) -> list[str]:
        """All methods that do not count."""
        names = []
        for problem_of in self.problems:
            for name, problem in problem_of.items():
                if problem:
                    names.append(name)
        return names

    @property
    def all_passed(self) -> bool:
        """Whether all methods are there once, the program compiles, and all visible tests, at least one, passed."""
        complete = self.syntax is None and not self.missing and not self.attempt.overlap
        return complete and self.total > 0 and not self.failures

    def failures_for(self, agent: int) -> list[Failure]:
        """Return the failed tests, starting with tests that mention the agent's own methods."""
        own = self.problems[agent].keys()
        return sorted(self.failures, key=lambda failure: own.isdisjoint(failure[1].mentions))


def diagnose(attempt: ClassAttempt, report: ExecutionReport, sandbox_slice: SandboxSlice) -> ClassDiagnosis:
    """Return the facts about a joint action, with the tests in the slice."""
    tests = sliced(report.tests, sandbox_slice)
    problems: list[dict[str, str]] = []
    for agent, names in enumerate(attempt.shares):
        problems.append({name: attempt.problem(agent, name) for name in names})
    failures = []
    for test in tests:
        if test.status != "pass":
            failures.append((test, parse_test(attempt.program.tests, test.source)))
    syntax = locate_syntax_error(report, attempt.starts.items())
    return ClassDiagnosis(attempt, tuple(problems), syntax, len(tests), tuple(failures))


def level_feedback(diagnosis: ClassDiagnosis, agent: int) -> list[str]:
    """Return every level in detail: the agent's own methods, and the failed tests that mention them first."""
    own = diagnosis.problems[agent]
    lines = []
    for name, problem in own.items():
        state = f"missing ({problem})" if problem else "found"
        lines.append(f"{name}: {state}")
    foreign = diagnosis.attempt.foreign(agent)
    if foreign:
        lines.append(f"not yours: {', '.join(foreign)}")
    others = [name for name in diagnosis.missing if name not in own]
    if others:
        lines.append(f"missing from others: {', '.join(others)}")
    lines.append(f"syntax: {describe_syntax(diagnosis.syntax)}")
    if diagnosis.syntax is not None:
        return [*lines, "tests: not run"]
    failures = diagnosis.failures_for(agent)
    lines.append(f"tests: {diagnosis.total - len(failures)} of {diagnosis.total} passed")
    for test, text in failures[:MAX_FAILURES]:
        shown = text.line
        if len(shown) > TEST_CHARS:
            shown = "..." + shown[3 - TEST_CHARS :]
        lines.append(f"failed: {shown} -> {describe_error(test)}")
    if len(failures) > MAX_FAILURES:
        lines.append(f"failed: {len(failures) - MAX_FAILURES} more")
    return lines


def level_passed(diagnosis: ClassDiagnosis, agent: int) -> list[str]:
    """Return for every level whether it passed, the same for all agents."""
    lines = ["methods: OK"]
    if diagnosis.missing:
        lines = [f"methods: missing {', '.join(diagnosis.missing)}"]
    lines.append(f"overlap: {', '.join(diagnosis.attempt.overlap) or 'none'}")
    if diagnosis.syntax is not None:
        return [*lines, "syntax: incorrect", "tests: not run"]
    count = diagnosis.total - len(diagnosis.failures)
    if not count:
        tests = "none"
    elif not diagnosis.failures:
        tests = "all"
    else:
        tests = f"{count} of {diagnosis.total}"
    return [*lines, "syntax: correct", f"tests: passed {tests}"]


FEEDBACK_BY_MODE: dict[str, Callable[[ClassDiagnosis, int], list[str]]] = {
    "level_feedback": level_feedback,
    "level_passed": level_passed,
    "passed": passed,
}
