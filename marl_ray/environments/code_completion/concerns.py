"""Which tests are about which methods, and what a test says, from the tests' own text.

A report names a test of a unittest class as `Class.test`; any other by its source.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Mapping
from dataclasses import dataclass

from marl_ray.environments.code_generation.extraction import parse, without_docstring


@dataclass(frozen=True, slots=True)
class TestText:
    """What a test does, on one line, and the attributes that it mentions: the methods that it is about."""

    __test__ = False  # not a test class, whatever pytest makes of its name

    line: str
    mentions: frozenset[str]


@functools.lru_cache(maxsize=256)
def unit_tests(tests: str) -> Mapping[str, TestText]:
    """The tests of the unittest classes in a source, by the name that a report gives them."""
    tree = parse(tests)
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)] if tree is not None else []
    return {
        f"{node.name}.{test.name}": _text(test)
        for node in classes
        for test in node.body
        if isinstance(test, ast.FunctionDef | ast.AsyncFunctionDef) and test.name.startswith("test")
    }


def text_of(tests: str | tuple[str, ...], source: str) -> TestText:
    """The text of the test that a report calls `source`."""
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
