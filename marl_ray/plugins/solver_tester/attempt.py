"""A parsed joint action of solver and testers: the solution, the written tests, and the programs to execute.

A written test has the form `assert f(...) == ...` with literals in place of the dots. The sandbox's judge evaluates
tests itself, so no model output may reach it unchanged: each test is rebuilt from its literals, as one call of the
tested function and one comparison. Everything else in a response is ignored.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from marl_ray.core.episode import Task
from marl_ray.environments.code_generation.attempt import CodeAttempt, code_attempt
from marl_ray.environments.code_generation.extraction import ExtractedFunction, parse, strip_fence
from marl_ray.sandbox import Program

MAX_TESTS = 8
"""Maximum tests of one response; further tests are ignored."""
MAX_TEST_CHARS = 500
"""Maximum characters of a test; longer tests are ignored."""
MAX_LINES = 200
"""Maximum lines read of a response that does not parse as a whole."""


@dataclass(frozen=True, slots=True)
class SolutionAttempt:
    """A parsed joint action. `written` are the tests of each tester. The first entry of `program` is the solution with
    the problem's tests. For each tester with tests, two further programs follow: the solution and the reference with
    that tester's tests. Executions never mix tests of two origins."""

    responses: tuple[str, ...]
    solution: CodeAttempt
    written: tuple[tuple[str, ...], ...]
    program: tuple[Program, ...]

    @property
    def part(self) -> ExtractedFunction:
        """The solver's function."""
        return self.solution.parts[0]

    @property
    def answers(self) -> list[str]:
        """Each agent's parsed answer, or its whole response if nothing could be parsed."""
        tests = ["\n".join(own) or strip_fence(text) for own, text in zip(self.written, self.responses, strict=False)]
        return [*tests, self.part.code or strip_fence(self.responses[-1])]


def solution_attempt(task: Task, responses: Sequence[str], visible: int | None) -> SolutionAttempt:
    """Parse a joint action, the solver's response last. `visible`: as in `Program`, for the problem's tests."""
    function, reference = task.fields["entry_point"], task.fields["reference"]
    solution = code_attempt(task, responses[-1:], (), visible)
    parameters = _parameters(reference, function)
    written = tuple(
        tuple(test for test in written_tests(text, function, parameters) if not _is_shown(test, task.prompt))
        for text in responses[:-1]
    )
    both = (
        Program(source, tests, function, prompt=task.prompt, form="asserts")
        for tests in written
        if tests
        for source in (solution.program.source, reference)
    )
    return SolutionAttempt(tuple(responses), solution, written, (solution.program, *both))


def written_tests(response: str, function: str, parameters: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return the tests of `function` in a response, one line each, in order. Of tests with equal arguments the first
    counts. `parameters` are the function's, by which keyword arguments are compared with positional ones.

    Example:
        >>> written_tests("Here you are:\\nassert f( 1 )==2, 'off by one'\\nassert f(1.0) == 3", "f")
        ('assert f(1) == 2',)
    """
    tests: list[str] = []
    seen: list[dict[str | int, Any]] = []
    for node in _asserts(strip_fence(response)):
        test = _canonical_test(node.test, function)
        if test and len(test) <= MAX_TEST_CHARS and (arguments := _arguments(node.test, parameters)) not in seen:
            tests.append(test)
            seen.append(arguments)
        if len(tests) == MAX_TESTS:
            break
    return tuple(tests)


def _is_shown(test: str, problem: str) -> bool:
    """Return whether the problem's text contains the test's call, so that the tester only had to copy an example."""
    (statement,) = _asserts(test)
    assert isinstance(statement.test, ast.Compare), "a canonical test"
    return _compact(ast.unparse(statement.test.left)) in _compact(problem)


def _compact(text: str) -> str:
    """Return a text without white space and with one kind of quotes."""
    return "".join(text.split()).replace('"', "'")


@lru_cache(maxsize=1024)
def _parameters(reference: str, function: str) -> tuple[str, ...]:
    """Return the names of the function's parameters in the reference."""
    tree = parse(reference)
    nodes = [
        node for node in (tree.body if tree else []) if isinstance(node, ast.FunctionDef) and node.name == function
    ]
    return tuple(argument.arg for node in nodes[-1:] for argument in (*node.args.posonlyargs, *node.args.args))


def _arguments(test: ast.expr, parameters: tuple[str, ...]) -> dict[str | int, Any]:
    """Return the arguments of a canonical test by parameter, or by position without one."""
    call = test.left if isinstance(test, ast.Compare) else test
    assert isinstance(call, ast.Call), "a canonical test"
    names = (*parameters, *range(len(parameters), len(call.args)))
    given = [*zip(names, call.args, strict=False), *((keyword.arg or "", keyword.value) for keyword in call.keywords)]
    return {name: ast.literal_eval(value) for name, value in given}


def _asserts(text: str) -> Iterator[ast.Assert]:
    """Yield all asserts of a program, or the asserts on lines of their own if the text does not parse."""
    tree = parse(text)
    if tree is not None:
        yield from sorted((node for node in ast.walk(tree) if isinstance(node, ast.Assert)), key=lambda n: n.lineno)
        return
    for line in text.split("\n")[:MAX_LINES]:
        alone = parse(line.strip()) if line.lstrip().startswith("assert") else None
        yield from (node for node in (alone.body if alone else []) if isinstance(node, ast.Assert))


def _canonical_test(test: ast.expr, function: str) -> str:
    """Return the test in canonical form, or an empty string for any other form and for a test that does not compile: a
    repeated keyword parses but does not compile, and the decimal form of a long hexadecimal integer exceeds a limit."""
    match test:
        case ast.Compare(left=ast.Call(func=ast.Name(id=name)) as call, ops=[ast.Eq()], comparators=[expected]) if (
            name == function and all(keyword.arg for keyword in call.keywords)
        ):
            try:
                for value in (*call.args, *(keyword.value for keyword in call.keywords), expected):
                    ast.literal_eval(value)  # raises unless the value is a literal
                text = f"assert {ast.unparse(test)}"
                compile(text, "<test>", "exec")
            except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):  # for example {[]: 1}
                return ""
            return text
    return ""
