"""Tests that a model wrote: read as data, and written anew.

A test is `assert f(...) == ...` with literals in the places of the dots. The judge of the sandbox, which says "pass",
evaluates tests itself, so nothing that a model wrote may be evaluated there as it stands. What is handed to it is made
of the literals alone: one call of the function that is tested, and one comparison. Whatever else is in a response is
left out.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from marl_ray.environments.code_generation.extraction import clean, parse

MOST_TESTS = 8
"""Of more the first so many are taken."""
MAX_TEST_CHARS = 500
"""Longer tests are left out."""
MOST_LINES = 200
"""Of a response that does not parse as a whole."""


def written_tests(response: str, function: str) -> tuple[str, ...]:
    """The tests of `function` in a response, one line each, without repetition, in their order.

    Example:
        >>> written_tests("Here you are:\\nassert f( 1 )==2, 'off by one'", "f")
        ('assert f(1) == 2',)
    """
    found: dict[str, None] = {}
    for node in _asserts(clean(response)):
        test = _literal_test(node.test, function)
        if test and len(test) <= MAX_TEST_CHARS:
            found[test] = None
        if len(found) == MOST_TESTS:
            break
    return tuple(found)


def _asserts(text: str) -> Iterator[ast.Assert]:
    """All of a program, those in functions too; of a text that is none, those that stand on a line of their own."""
    tree = parse(text)
    if tree is not None:
        yield from sorted((node for node in ast.walk(tree) if isinstance(node, ast.Assert)), key=lambda n: n.lineno)
        return
    for line in text.split("\n")[:MOST_LINES]:
        alone = parse(line.strip()) if line.lstrip().startswith("assert") else None
        yield from (node for node in (alone.body if alone else []) if isinstance(node, ast.Assert))


def _literal_test(test: ast.expr, function: str) -> str:
    """The test in our own words; empty where it is of another form."""
    match test:
        case ast.Compare(left=ast.Call(func=ast.Name(id=name)) as call, ops=[ast.Eq()], comparators=[wanted]):
            values = [*call.args, *(keyword.value for keyword in call.keywords), wanted]
            named = all(keyword.arg for keyword in call.keywords)
            return _anew(test) if name == function and named and all(map(_literal, values)) else ""
    return ""


def _anew(test: ast.expr) -> str:
    """Empty where it is no program: a repeated keyword parses and does not compile, and decimal digits of an integer
    that is written in hexadecimal have a limit."""
    try:
        text = f"assert {ast.unparse(test)}"
        compile(text, "<test>", "exec")
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return ""
    return text


def _literal(node: ast.expr) -> bool:
    """Whether it is a value, and nothing that has to be computed."""
    try:
        ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):  # {[]: 1} has no value
        return False
    return True
