"""Parsing of test sources into single cases, and separation of visible tests from hidden tests.

Four forms: a source with `check(candidate)` (HumanEval), assert lines (MBPP), stdin/stdout pairs, and unittest classes
(ClassEval). Of the first two every assert statement gets a verdict of its own. The parser never reads a program.

Visible tests, whose results feedback shows, run first, in a guest of their own. Otherwise a program could remember the
inputs of earlier tests and reveal them in an error that the feedback quotes, and earlier tests could use up the
program's budget.
"""

from __future__ import annotations

import ast
import functools
import json
from collections import Counter
from collections.abc import Iterable, Sequence, Set
from dataclasses import replace
from typing import TypeGuard

from .assert_tests import assert_suite, flat_check, is_check, parse_source
from .statements import Statement, parse
from .suite import Case, Form, Suite


@functools.lru_cache(maxsize=256)
def parse_tests(tests: str | tuple[str, ...], entry_point: str, form: Form = "auto", prompt: str = "") -> Suite:
    """Split the tests of one problem into cases. Raises ValueError, in one line, if they are not usable."""
    try:
        if form == "auto":
            form = _detect(tests)
        if form not in ("stdio", "unittest") and not entry_point.isidentifier():
            raise ValueError(f"entry point {entry_point!r} is not a Python name")
        if form == "stdio":
            suite = _stdio_suite((tests,) if isinstance(tests, str) else tests)
        elif form == "unittest":
            suite = _unittest_suite(_joined(tests))
        elif form == "check":
            suite = assert_suite([flat_check(parse_source(_joined(tests)), entry_point)], entry_point, prompt, False)
        elif isinstance(tests, tuple):
            items = [parse_source(item, f"test {number}").body for number, item in enumerate(tests, 1)]
            suite = assert_suite(items, entry_point, prompt, True)
        else:
            suite = assert_suite([parse_source(tests).body], entry_point, prompt, False)
    except (RecursionError, MemoryError) as error:
        raise ValueError(f"tests are nested too deeply ({type(error).__name__})") from None
    if not suite.cases:
        raise ValueError(f"tests contain no test (form {form})")
    return suite


def _joined(tests: str | tuple[str, ...]) -> str:
    return tests if isinstance(tests, str) else "\n".join(tests)


def _detect(tests: str | tuple[str, ...]) -> Form:
    if isinstance(tests, tuple):
        return "stdio" if tests and all(_stdio_pair(item) for item in tests) else "asserts"
    body = parse_source(tests).body
    if any(_is_test_class(node) for node in body):
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


def _stdio_suite(tests: tuple[str, ...]) -> Suite:
    cases = []
    for number, item in enumerate(tests, 1):
        pair = _stdio_pair(item)
        if pair is None:
            raise ValueError(f"test {number} is not a JSON object of the strings 'stdin' and 'stdout'")
        shown = item if len(item) <= _MAX_SHOWN else f"{item[:_MAX_SHOWN]}..."
        cases.append(Case(source=shown, stdin=pair[0], stdout=pair[1]))
    return Suite("stdio", tuple(cases))


# --- visible and hidden tests ---


@functools.lru_cache(maxsize=256)
def split_suite(
    tests: str | tuple[str, ...], entry_point: str, form: Form, prompt: str, visible: int | None
) -> tuple[tuple[tuple[int, ...], Suite], ...]:
    """Return the parts of a suite in the order in which they run: numbers of cases, and a suite of these cases alone.

    `visible` n: the first n tests are visible; -n: the last n; 0 or None: all. Raises ValueError like `parse_tests`.
    """
    suite = parse_tests(tests, entry_point, form, prompt)
    numbers = tuple(range(len(suite.cases)))
    first = numbers[:visible] if visible is None or visible > 0 else numbers[visible:]
    if len(first) in (0, len(numbers)):
        return ((numbers, suite),)
    rest = tuple(number for number in numbers if number not in first)
    return tuple((chosen, _part(suite, chosen, entry_point, prompt)) for chosen in (first, rest))


def _part(suite: Suite, chosen: Sequence[int], entry_point: str, prompt: str) -> Suite:
    cases = [suite.cases[number] for number in chosen]
    if suite.form == "unittest":
        units = [case.unit for case in cases if case.unit is not None]
        return replace(suite, cases=tuple(cases), source=_keep_test_methods(suite.source, units))
    if suite.form == "stdio":
        return replace(suite, cases=tuple(cases))
    statements = [Statement(number, node) for number, case in enumerate(suite.cases) for node in parse(case.plain).body]
    needed = _needed_sources(statements, set(chosen))
    items = ["\n".join([*needed[number], suite.cases[number].plain]) for number in chosen]
    part = parse_tests(tuple(items), entry_point, "asserts", prompt)
    shown = tuple(replace(case, source=whole.source) for case, whole in zip(part.cases, cases, strict=True))
    return replace(part, cases=shown)


def _needed_sources(statements: Sequence[Statement], chosen: Set[int]) -> dict[int, list[str]]:
    """Return for each chosen case the sources that it depends on of cases that are not chosen, in order: statements
    that bind a name it uses, and statements that mention a variable that could have been changed there.
    """
    times = Counter(name for statement in statements for name in statement.binds)
    definitions = [statement for statement in statements if statement.is_definition()]
    fixed = {name for statement in definitions for name in statement.binds if times[name] == 1}
    variables = times.keys() - fixed
    included = {statement for statement in statements if statement.case in chosen}
    sources: dict[int, list[str]] = {}
    for number in sorted(chosen):
        live: set[str] = set()
        needed = []
        for statement in reversed(statements):
            if statement.case == number:
                live = statement.live_before(live)
            elif statement.case < number and (statement.binds & live or statement.uses & live & variables):
                live = statement.live_before(live)
                if statement not in included:
                    needed.append(statement)
        included.update(needed)
        sources[number] = [statement.source() for statement in reversed(needed)]
    return sources


# --- unittest classes ---


def _is_test_class(node: ast.stmt) -> bool:
    bases = node.bases if isinstance(node, ast.ClassDef) else []
    return any(ast.unparse(base).rpartition(".")[2].endswith("TestCase") for base in bases)


def _is_test_method(node: ast.stmt) -> TypeGuard[ast.FunctionDef | ast.AsyncFunctionDef]:
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test")


def _unittest_suite(source: str) -> Suite:
    classes = _classes_in(parse_source(source))
    cases = []
    for name, node in classes.items():
        inherited = _ancestry(node, classes)
        if not any(map(_is_test_class, inherited)):
            continue
        items = [item for ancestor in reversed(inherited) for item in ancestor.body]
        methods = dict.fromkeys(item.name for item in items if _is_test_method(item))
        cases += [Case(f"{name}.{method}", unit=(name, method), in_guest="unittest classes") for method in methods]
    return Suite("unittest", tuple(cases), source=source)


def _classes_in(tree: ast.Module) -> dict[str, ast.ClassDef]:
    return {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}


def _ancestry(node: ast.ClassDef, classes: dict[str, ast.ClassDef]) -> list[ast.ClassDef]:
    """Return the class and its base classes from the same source, without repetition."""
    ancestors = [node]
    for ancestor in ancestors:
        for base in ancestor.bases:
            known = classes.get(base.id) if isinstance(base, ast.Name) else None
            if known is not None and known not in ancestors:
                ancestors.append(known)
    return ancestors


def _keep_test_methods(source: str, units: Iterable[tuple[str, str]]) -> str:
    """Return the source with only the tests `units` (class, method), including inherited tests."""
    classes = _classes_in(parse(source))
    tested = {
        name
        for name, node in classes.items()
        if any(_is_test_method(item) for ancestor in _ancestry(node, classes) for item in ancestor.body)
    }
    methods = {(name, item.name) for name, node in classes.items() for item in node.body if _is_test_method(item)}
    selected = {(ancestor.name, method) for name, method in units for ancestor in _ancestry(classes[name], classes)}
    kept = {name for name, _ in selected}
    while True:
        tree = _remove_tests(source, tested - kept, selected)
        mentioned = {getattr(part, "id", None) or getattr(part, "attr", None) for part in ast.walk(tree)}
        more = {(name, method) for name, method in methods if name in kept and method in mentioned} - selected
        if not more and not classes.keys() & mentioned - kept:
            return ast.unparse(tree)
        selected |= more
        kept |= classes.keys() & mentioned


def _remove_tests(source: str, classes: set[str], selected: set[tuple[str, str]]) -> ast.Module:
    """Return the tree without these classes, and without tests that are not selected."""
    tree = parse(source)
    tree.body = [node for node in tree.body if not (isinstance(node, ast.ClassDef) and node.name in classes)]
    for name, node in _classes_in(tree).items():
        left = [item for item in node.body if not _is_test_method(item) or (name, item.name) in selected]
        node.body = left or [ast.Pass()]
    return tree
