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
        parsed = ["\n".join(tests) for tests in self.written]
        parsed.append(self.part.code)
        for agent, response in enumerate(self.responses):
            if not parsed[agent]:
                parsed[agent] = strip_fence(response)
        return parsed


def solution_attempt(task: Task, responses: Sequence[str], visible: int | None) -> SolutionAttempt:
    """Parse a joint action, the solver's response last. `visible`: as in `Program`, for the problem's tests."""
    function = task.fields["entry_point"]
    reference = task.fields["reference"]
    solution = code_attempt(task, responses[-1:], (), visible)
    parameters = _parameters(reference, function)
    written: list[tuple[str, ...]] = []
    programs = [solution.program]
    for response in responses[:-1]:
        tests = written_tests(response, function, parameters)
        tests = tuple(test for test in tests if not _is_shown(test, task.prompt))
        written.append(tests)
        if tests:
            for source in (solution.program.source, reference):
                programs.append(Program(source, tests, function, prompt=task.prompt, form="asserts"))
    return SolutionAttempt(tuple(responses), solution, tuple(written), tuple(programs))


def written_tests(response: str, function: str, parameters: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return the tests of `function` in a response, one line each, in order. Of tests with equal arguments the first
    counts. `parameters` are the function's, by which keyword arguments are compared with positional ones.

    Example:
        >>> written_tests("Here you are:\\nassert f( 1 )==2, 'off by one'\\nassert f(1.0) == 3", "f")
        ('assert f(1) == 2',)
    """
    tests = []
    seen: list[dict[str | int, Any]] = []
    for node in _asserts(strip_fence(response)):
        test = _canonical_test(node.test, function)
        if not test or len(test) > MAX_TEST_CHARS:
            continue
        arguments = _arguments(node.test, parameters)
        if arguments in seen:
            continue
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
    if tree is None:
        return ()
    for node in reversed(tree.body):
        if isinstance(node, ast.FunctionDef) and node.name == function:  # the last definition counts
            arguments = node.args.posonlyargs + node.args.args
            return tuple(argument.arg for argument in arguments)
    return ()


def _arguments(test: ast.expr, parameters: tuple[str, ...]) -> dict[str | int, Any]:
    """Return the arguments of a canonical test by parameter, or by position without one."""
    assert isinstance(test, ast.Compare), "a canonical test"
    call = test.left
    assert isinstance(call, ast.Call), "a canonical test"
    arguments: dict[str | int, Any] = {}
    names = (*parameters, *range(len(parameters), len(call.args)))
    for name, value in zip(names, call.args, strict=False):
        arguments[name] = ast.literal_eval(value)
    for keyword in call.keywords:
        arguments[keyword.arg or ""] = ast.literal_eval(keyword.value)
    return arguments


def _asserts(text: str) -> Iterator[ast.Assert]:
    """Yield all asserts of a program, or the asserts on lines of their own if the text does not parse."""
    tree = parse(text)
    if tree is not None:
        asserts = [node for node in ast.walk(tree) if isinstance(node, ast.Assert)]
        yield from sorted(asserts, key=lambda node: node.lineno)
        return
    for line in text.split("\n")[:MAX_LINES]:
        if not line.lstrip().startswith("assert"):
            continue
        tree = parse(line.strip())
        if tree is None:
            continue
        for statement in tree.body:
            if isinstance(statement, ast.Assert):
                yield statement


def _canonical_test(test: ast.expr, function: str) -> str:
    """Return the test in canonical form, or an empty string for any other form and for a test that does not compile: a
    repeated keyword parses but does not compile, and the decimal form of a long hexadecimal integer exceeds a limit."""
    match test:
        case ast.Compare(left=ast.Call(func=ast.Name(id=name)) as call, ops=[ast.Eq()], comparators=[expected]):
            if name != function:
                return ""
        case _:
            return ""
    values = [*call.args, expected]
    for keyword in call.keywords:
        if not keyword.arg:  # `**arguments`
            return ""
        values.append(keyword.value)
    try:
        for value in values:
            ast.literal_eval(value)  # raises unless the value is a literal
        text = f"assert {ast.unparse(test)}"
        compile(text, "<test>", "exec")
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):  # for example {[]: 1}
        return ""
    return text
