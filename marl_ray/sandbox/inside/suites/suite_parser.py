"""Parsing of test sources into single cases, and separation of visible tests from hidden tests.

Four forms: a source with `check(candidate)` (HumanEval), assert lines (MBPP), stdin/stdout pairs, and unittest classes
(ClassEval). Of the first two every assert statement gets a verdict of its own. The parser never reads a program.

Visible tests, whose results feedback shows, run first, in a guest of their own. Otherwise a program could remember the
inputs of earlier tests and reveal them in an error that the feedback quotes, and earlier tests could use up the
program's budget.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import json
from collections.abc import Iterator, Sequence, Set
from dataclasses import replace
from typing import NamedTuple

from .assert_tests import TestBlocks, assert_suite, count_asserts, flat_check, is_check, parse_source
from .pytest_tests import pytest_items
from .statements import SharedVariables, Statement, parse, unneeded_definitions
from .suite import Case, Form, Suite
from .unit_tests import count_methods, is_test_class, keep_test_methods, unittest_suite


@functools.lru_cache(maxsize=256)
def count_tests(tests: str | tuple[str, ...], entry_point: str, form: Form = "auto") -> int:
    """Return the number of cases of `parse_tests` in a tenth of its time. Raises ValueError like `parse_tests`.

    The host counts the tests, and only the judge analyses them.
    """
    form = _checked_form(tests, entry_point, form)
    with _readable_errors():
        if form == "stdio":
            count = len(_stdio_pairs(tests))
        elif form == "unittest":
            count = count_methods(_joined(tests))
        else:
            count = count_asserts(_test_blocks(tests, entry_point, form))
    _require_tests(count, form)
    return count


@functools.lru_cache(maxsize=256)
def parse_tests(tests: str | tuple[str, ...], entry_point: str, form: Form = "auto", prompt: str = "") -> Suite:
    """Split the tests of one problem into cases. Raises ValueError, in one line, if they are not usable."""
    form = _checked_form(tests, entry_point, form)
    with _readable_errors():
        if form == "stdio":
            suite = _stdio_suite(tests)
        elif form == "unittest":
            suite = unittest_suite(_joined(tests), entry_point)
        else:
            suite = assert_suite(_test_blocks(tests, entry_point, form), entry_point, prompt)
    _require_tests(len(suite.cases), form)
    return suite


@contextlib.contextmanager
def _readable_errors() -> Iterator[None]:
    try:
        yield
    except (RecursionError, MemoryError) as error:
        raise ValueError(f"tests are nested too deeply ({type(error).__name__})") from None


def _checked_form(tests: str | tuple[str, ...], entry_point: str, form: Form) -> Form:
    """Return the form, inferred if it is "auto". Raises ValueError for an entry point that is not a name."""
    with _readable_errors():
        form = _detect(tests) if form == "auto" else form
    if form not in ("stdio", "unittest") and not entry_point.isidentifier():
        raise ValueError(f"entry point {entry_point!r} is not a Python name")
    return form


def _require_tests(count: int, form: Form) -> None:
    if not count:
        raise ValueError(f"tests contain no test (form {form})")


def _test_blocks(tests: str | tuple[str, ...], entry_point: str, form: Form) -> TestBlocks:
    """Return the statements of each case of asserting tests."""
    if form == "check":
        return TestBlocks([flat_check(parse_source(_joined(tests)), entry_point)], whole_items=False)
    items = [tests] if isinstance(tests, str) else tests
    trees = [
        parse_source(item, f"test {number}" if len(items) > 1 else "tests") for number, item in enumerate(items, 1)
    ]
    if len(trees) == 1 and (called := pytest_items(trees[0], entry_point)) is not None:
        return TestBlocks(called, whole_items=True)
    return TestBlocks([tree.body for tree in trees], whole_items=isinstance(tests, tuple))


def _joined(tests: str | tuple[str, ...]) -> str:
    return tests if isinstance(tests, str) else "\n".join(tests)


def _detect(tests: str | tuple[str, ...]) -> Form:
    if isinstance(tests, tuple):
        return "stdio" if tests and all(_stdio_pair(item) for item in tests) else "asserts"
    body = parse_source(tests).body
    if any(is_test_class(node) for node in body):
        return "unittest"
    return "check" if any(is_check(node) for node in body) else "asserts"


# --- stdin/stdout pairs ---


_MAX_SHOWN = 500
"""Characters of a pair that reports show, since pairs of public problems take up to megabytes."""


def _stdio_pair(item: str) -> tuple[str, str] | None:
    try:
        data = json.loads(item)
    except ValueError:
        return None
    if not isinstance(data, dict) or set(data) != {"stdin", "stdout"}:
        return None
    pair = data["stdin"], data["stdout"]
    return pair if all(isinstance(text, str) for text in pair) else None


def _stdio_pairs(tests: str | tuple[str, ...]) -> list[tuple[str, str, str]]:
    """Return text, input and expected output of each test. Raises ValueError."""
    pairs = []
    for number, item in enumerate((tests,) if isinstance(tests, str) else tests, 1):
        pair = _stdio_pair(item)
        if pair is None:
            raise ValueError(f"test {number} is not a JSON object of the strings 'stdin' and 'stdout'")
        pairs.append((item, *pair))
    return pairs


def _stdio_suite(tests: str | tuple[str, ...]) -> Suite:
    cases = []
    for item, stdin, stdout in _stdio_pairs(tests):
        shown = item if len(item) <= _MAX_SHOWN else f"{item[:_MAX_SHOWN]}..."
        cases.append(Case(source=shown, stdin=stdin, stdout=stdout))
    return Suite("stdio", tuple(cases), leaves_nothing=True)


# --- visible and hidden tests ---


class SuitePart(NamedTuple):
    """The tests of a suite that run in a guest of their own, with their numbers in the whole suite."""

    numbers: tuple[int, ...]
    suite: Suite


@functools.lru_cache(maxsize=256)
def split_suite(
    tests: str | tuple[str, ...], entry_point: str, form: Form, prompt: str, visible: int | None
) -> tuple[SuitePart, ...]:
    """Return the parts of a suite in the order in which they run.

    `visible` n: the first n tests are visible; -n: the last n; 0 or None: all. Raises ValueError like `parse_tests`.
    The hidden part runs the visible tests before its last test again, so that a program with state is in the state that
    it has if all tests run in order.
    """
    suite = parse_tests(tests, entry_point, form, prompt)
    numbers = tuple(range(len(suite.cases)))
    first = numbers[:visible] if visible is None or visible > 0 else numbers[visible:]
    if len(first) in (0, len(numbers)):
        return (SuitePart(numbers, suite),)
    rest = tuple(number for number in numbers if number not in first)
    run = rest if suite.form == "stdio" else numbers[: rest[-1] + 1]
    hidden = SuitePart(run, replace(suite, cases=tuple(suite.cases[number] for number in run)))
    return SuitePart(first, _visible_part(suite, first, entry_point, prompt)), hidden


def _visible_part(suite: Suite, chosen: Sequence[int], entry_point: str, prompt: str) -> Suite:
    cases = [suite.cases[number] for number in chosen]
    if suite.form == "unittest":
        units = [case.unit for case in cases if case.unit is not None]
        part = unittest_suite(keep_test_methods(suite.source, units), entry_point)
        return replace(part, cases=tuple(case for case in part.cases if case.unit in units))
    if suite.form == "stdio":
        return replace(suite, cases=tuple(cases))
    blocks = [parse(case.plain).body for case in suite.cases]
    needed = _needed_statements(SharedVariables(blocks, suite.patches), blocks, set(chosen))
    statements = [node for number in chosen for node in (*needed[number], *blocks[number])]
    unneeded = unneeded_definitions(statements)
    items = ["\n".join(ast.unparse(n) for n in (*needed[x], *blocks[x]) if n not in unneeded) for x in chosen]
    part = parse_tests(tuple(items), entry_point, "asserts", prompt)
    shown = tuple(replace(case, source=whole.source) for case, whole in zip(part.cases, cases, strict=True))
    return replace(part, cases=shown)


def _needed_statements(
    variables: SharedVariables, blocks: Sequence[Sequence[ast.stmt]], chosen: Set[int]
) -> dict[int, list[ast.stmt]]:
    """Return for each chosen case the statements that it depends on of cases that are not chosen, in order: statements
    that bind a name it uses, and statements that may change a variable that it uses.
    """
    statements = [Statement(number, node) for number, block in enumerate(blocks) for node in block]
    included = {statement for statement in statements if statement.case in chosen}
    result: dict[int, list[ast.stmt]] = {}
    for number in sorted(chosen):
        live: set[str] = set()
        needed = []
        for statement in reversed(statements):
            live = variables.closure(live)
            if statement.case == number:
                live = statement.live_before(live)
            elif statement.case < number and (statement.binds & live or variables.touched_by(statement) & live):
                live = statement.live_before(live)
                if statement not in included:
                    needed.append(statement)
        included.update(needed)
        result[number] = [
            each.node if each.binds and each.binds <= variables.fixed else each.without_asserts()
            for each in reversed(needed)
        ]
    return result
