"""A unittest source with only some of its tests.

The guest gets the source of the tests that run in it, so a program can read there what they compare. The test methods
of the other part are taken out, and the classes that have no test of this part. What else the classes have (`setUp`,
helpers, decorators, bases) stays, as does what a remaining part mentions by name.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable

from .parser import ancestry, classes_in
from .syntax import parse

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def only_units(source: str, units: Iterable[tuple[str, str]]) -> str:
    """The source with the tests `units` (class, method), what they inherit included."""
    tree = parse(source)
    classes = classes_in(tree)
    tested = {
        name: any(_is_test(item) for ancestor in ancestry(node, classes) for item in ancestor.body)
        for name, node in classes.items()
    }
    wanted = {(ancestor.name, method) for name, method in units for ancestor in ancestry(classes[name], classes)}
    kept = {name for name, _ in wanted}
    while True:
        cut = _without(source, {name for name in tested if tested[name]} - kept, wanted)
        said = _mentioned(cut)
        more = {(name, method) for name, method in _tests(classes) if name in kept and method in said} - wanted
        if not more and not said & tested.keys() - kept:
            return ast.unparse(cut)
        wanted |= more
        kept |= said & tested.keys()


def _without(source: str, classes: set[str], wanted: set[tuple[str, str]]) -> ast.Module:
    """The tree without these classes, and without tests that are not wanted."""
    tree = parse(source)
    tree.body = [node for node in tree.body if not (isinstance(node, ast.ClassDef) and node.name in classes)]
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            left = [item for item in node.body if not _is_test(item) or (node.name, _name(item)) in wanted]
            node.body = left or [ast.Pass()]
    return tree


def _mentioned(tree: ast.AST) -> set[str]:
    return {
        part.id if isinstance(part, ast.Name) else part.attr
        for part in ast.walk(tree)
        if isinstance(part, ast.Name | ast.Attribute)
    }


def _tests(classes: dict[str, ast.ClassDef]) -> Iterable[tuple[str, str]]:
    return ((name, _name(item)) for name, node in classes.items() for item in node.body if _is_test(item))


def _is_test(item: ast.stmt) -> bool:
    return isinstance(item, _FUNCTIONS) and item.name.startswith("test")


def _name(item: ast.stmt) -> str:
    return getattr(item, "name", "")
