"""Test parser: splits test sources into single cases.

Four forms: a source with `check(candidate)` (HumanEval), assert lines (MBPP), stdin/stdout pairs, and unittest classes
(ClassEval). Of the first two every assert statement gets a verdict of its own. Tests are trusted, programs are not: the
parser never reads a program.
"""

from __future__ import annotations

import ast
import functools
import json

from .assert_tests import assert_suite, flat_check, is_check, parse_source
from .suite import Case, Form, Suite


@functools.lru_cache(maxsize=256)
def parse_tests(tests: str | tuple[str, ...], entry_point: str, form: Form = "auto", prompt: str = "") -> Suite:
    """Split the tests of one problem into cases. Raises ValueError, in one line, if they are not usable."""
    try:
        if form == "auto":
            form = _detect(tests)
        if form == "stdio":
            return _stdio_suite(tests)
        if form != "unittest" and not entry_point.isidentifier():
            raise ValueError(f"entry point {entry_point!r} is not a Python name")
        if form == "unittest":
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


def _stdio_suite(tests: str | tuple[str, ...]) -> Suite:
    cases = []
    for number, item in enumerate((tests,) if isinstance(tests, str) else tests, 1):
        pair = _stdio_pair(item)
        if pair is None:
            raise ValueError(f"test {number} is not a JSON object of the strings 'stdin' and 'stdout'")
        shown = item if len(item) <= _MAX_SHOWN else f"{item[:_MAX_SHOWN]}..."
        cases.append(Case(source=shown, stdin=pair[0], stdout=pair[1]))
    if not cases:
        raise ValueError("tests contain no test (form stdio)")
    return Suite("stdio", tuple(cases))


# --- unittest classes ---


def _is_test_class(node: ast.stmt) -> bool:
    if not isinstance(node, ast.ClassDef):
        return False
    return any(ast.unparse(base).rpartition(".")[2].endswith("TestCase") for base in node.bases)


def _unittest_suite(source: str) -> Suite:
    tree = parse_source(source)
    classes = classes_in(tree)
    cases = []
    for name, node in classes.items():
        inherited = ancestry(node, classes)
        if not any(_is_test_class(ancestor) for ancestor in inherited):
            continue
        methods = dict.fromkeys(
            item.name
            for ancestor in reversed(inherited)
            for item in ancestor.body
            if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef) and item.name.startswith("test")
        )
        cases += [Case(f"{name}.{method}", unit=(name, method), in_guest="unittest classes") for method in methods]
    return Suite("unittest", tuple(cases), source=source)


def classes_in(tree: ast.Module) -> dict[str, ast.ClassDef]:
    """Return the classes of a source by name."""
    return {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}


def ancestry(node: ast.ClassDef, classes: dict[str, ast.ClassDef]) -> list[ast.ClassDef]:
    """Return the class and its base classes from the same source, without repetition."""
    ancestors = [node]
    for ancestor in ancestors:
        for base in ancestor.bases:
            known = classes.get(base.id) if isinstance(base, ast.Name) else None
            if known is not None and known not in ancestors:
                ancestors.append(known)
    return ancestors
