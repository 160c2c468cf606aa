"""Separation of visible tests, whose results feedback shows, from hidden tests.

Visible tests run first, in a guest of their own. Otherwise a program could remember the inputs of earlier tests and
reveal them in an error that the feedback quotes, and earlier tests could use up the program's budget. Each part
receives, of the other part, only the statements that its own tests depend on: statements that bind a name they use,
and statements that mention a variable that could have been changed there. (Tests that share a variable therefore bring
each other along; tests that share only imports, functions and constants do not.)

Of a unittest source each part receives only its own test methods, since a program can read the source in its guest.
Classes without a test of this part are removed. Everything else (`setUp`, helpers, decorators, bases) stays, as does
everything that the remaining source mentions by name.
"""

from __future__ import annotations

import ast
import functools
from collections import Counter
from collections.abc import Iterable, Sequence, Set
from dataclasses import replace

from .parser import ancestry, classes_in, parse_tests
from .statements import Statement, parse
from .suite import Form, Suite

SuitePart = tuple[tuple[int, ...], Suite]
"""Numbers of the cases in the whole suite, and a suite of these cases alone."""


@functools.lru_cache(maxsize=256)
def split_suite(
    tests: str | tuple[str, ...], entry_point: str, form: Form, prompt: str, visible: int | None
) -> tuple[SuitePart, ...]:
    """Return the parts of a suite in the order in which they run.

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
    """Return for each chosen case the sources, in order, that it needs of cases that are not chosen."""
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


# --- unittest ---


def _keep_test_methods(source: str, units: Iterable[tuple[str, str]]) -> str:
    """Return the source with only the tests `units` (class, method), including inherited tests."""
    tree = parse(source)
    classes = classes_in(tree)
    tested = {
        name: any(_is_test(item) for ancestor in ancestry(node, classes) for item in ancestor.body)
        for name, node in classes.items()
    }
    methods = {(name, _name(item)) for name, node in classes.items() for item in node.body if _is_test(item)}
    selected = {(ancestor.name, method) for name, method in units for ancestor in ancestry(classes[name], classes)}
    kept = {name for name, _ in selected}
    while True:
        cut = _remove_tests(source, {name for name in tested if tested[name]} - kept, selected)
        mentioned = _mentioned_names(cut)
        more = {(name, method) for name, method in methods if name in kept and method in mentioned} - selected
        if not more and not mentioned & tested.keys() - kept:
            return ast.unparse(cut)
        selected |= more
        kept |= mentioned & tested.keys()


def _remove_tests(source: str, classes: set[str], selected: set[tuple[str, str]]) -> ast.Module:
    """Return the tree without these classes, and without tests that are not selected."""
    tree = parse(source)
    tree.body = [node for node in tree.body if not (isinstance(node, ast.ClassDef) and node.name in classes)]
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            left = [item for item in node.body if not _is_test(item) or (node.name, _name(item)) in selected]
            node.body = left or [ast.Pass()]
    return tree


def _mentioned_names(tree: ast.AST) -> set[str]:
    return {
        part.id if isinstance(part, ast.Name) else part.attr
        for part in ast.walk(tree)
        if isinstance(part, ast.Name | ast.Attribute)
    }


def _is_test(item: ast.stmt) -> bool:
    return isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef) and item.name.startswith("test")


def _name(item: ast.stmt) -> str:
    return getattr(item, "name", "")
