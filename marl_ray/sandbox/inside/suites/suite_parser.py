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
import itertools
import json
from collections.abc import Iterator, Sequence, Set
from dataclasses import replace
from typing import NamedTuple

from .assert_tests import TestBlocks, assert_suite, count_asserts, flat_check, is_check, parse_source
from .pytest_tests import pytest_items
from .statements import SharedVariables, Statement, syntax_tree, unneeded_definitions
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
    if form == "auto":
        with _readable_errors():
            form = _detect(tests)
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
    items = _items(tests)
    if len(items) == 1:
        tree = parse_source(items[0])
        called = pytest_items(tree, entry_point)
        if called is not None:
            return TestBlocks(called, whole_items=True)
        trees = [tree]
    else:
        trees = [parse_source(item, f"test {number}") for number, item in enumerate(items, 1)]
    return TestBlocks([tree.body for tree in trees], whole_items=isinstance(tests, tuple))


def _items(tests: str | tuple[str, ...]) -> tuple[str, ...]:
    return (tests,) if isinstance(tests, str) else tests


def _joined(tests: str | tuple[str, ...]) -> str:
    return "\n".join(_items(tests))


def _detect(tests: str | tuple[str, ...]) -> Form:
    if isinstance(tests, tuple):
        is_stdio = tests and all(map(_stdio_pair, tests))
        return "stdio" if is_stdio else "asserts"
    body = parse_source(tests).body
    if any(map(is_test_class, body)):
        return "unittest"
    return "check" if any(map(is_check, body)) else "asserts"


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
    stdin = data["stdin"]
    stdout = data["stdout"]
    if isinstance(stdin, str) and isinstance(stdout, str):
        return stdin, stdout
    return None


def _stdio_pairs(tests: str | tuple[str, ...]) -> list[tuple[str, str, str]]:
    """Return text, input and expected output of each test. Raises ValueError."""
    pairs = []
    for number, item in enumerate(_items(tests), 1):
        pair = _stdio_pair(item)
        if pair is None:
            raise ValueError(f"test {number} is not a JSON object of the strings 'stdin' and 'stdout'")
        pairs.append((item, *pair))
    return pairs


def _stdio_suite(tests: str | tuple[str, ...]) -> Suite:
    cases = []
    for item, stdin, stdout in _stdio_pairs(tests):
        if len(item) > _MAX_SHOWN:
            item = f"{item[:_MAX_SHOWN]}..."
        cases.append(Case(item, stdin=stdin, stdout=stdout))
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
    if not visible:
        return (SuitePart(numbers, suite),)
    first = numbers[:visible] if visible > 0 else numbers[visible:]
    if len(first) == len(numbers):
        return (SuitePart(numbers, suite),)
    run = tuple(number for number in numbers if number not in first)
    if suite.form != "stdio":
        run = numbers[: run[-1] + 1]
    hidden = SuitePart(run, replace(suite, cases=_cases(suite, run)))
    return SuitePart(first, _visible_part(suite, first, entry_point, prompt)), hidden


def _cases(suite: Suite, numbers: Sequence[int]) -> tuple[Case, ...]:
    return tuple(suite.cases[number] for number in numbers)


def _visible_part(suite: Suite, chosen: Sequence[int], entry_point: str, prompt: str) -> Suite:
    cases = _cases(suite, chosen)
    if suite.form == "unittest":
        units = [case.unit for case in cases if case.unit is not None]
        part = unittest_suite(keep_test_methods(suite.source, units), entry_point)
        return replace(part, cases=tuple(case for case in part.cases if case.unit in units))
    if suite.form == "stdio":
        return replace(suite, cases=cases)
    blocks = [syntax_tree(case.plain).body for case in suite.cases]
    needed = _needed_statements(SharedVariables(blocks, suite.patches), blocks, set(chosen))
    bodies = [[*needed[number], *blocks[number]] for number in chosen]
    unneeded = unneeded_definitions([*itertools.chain(*bodies)])
    items = []
    for body in bodies:
        kept = [node for node in body if node not in unneeded]
        items.append("\n".join(map(ast.unparse, kept)))
    part = parse_tests(tuple(items), entry_point, "asserts", prompt)
    # Reports show each test as its author wrote it, without the statements of other cases.
    shown = tuple(replace(case, source=whole.source) for case, whole in zip(part.cases, cases, strict=True))
    return replace(part, cases=shown)


def _needed_statements(
    variables: SharedVariables, blocks: Sequence[Sequence[ast.stmt]], chosen: Set[int]
) -> dict[int, list[ast.stmt]]:
    """Return for each chosen case the statements that it depends on of cases that are not chosen, in order: statements
    that bind a name it uses, and statements that may change a variable that it uses.
    """
    statements: list[Statement] = []
    for number, block in enumerate(blocks):
        statements += [Statement(number, node) for node in block]
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
        result[number] = []
        for statement in reversed(needed):
            is_definition = statement.binds and statement.binds <= variables.fixed
            result[number].append(statement.node if is_definition else statement.without_asserts())
    return result
