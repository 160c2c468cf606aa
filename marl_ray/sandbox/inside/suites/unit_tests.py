"""Parser of unittest classes: one case per test method, and where each method can be evaluated.

The judge runs the methods itself, with the class under test as a proxy. A method runs in the guest if it, its fixtures
or the helpers that it uses need the program's class as a class, pass the program a function, or observe or change
the process or the files of the program.
"""

from __future__ import annotations

import ast
import copy
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from types import CodeType
from typing import Any, TypeGuard

from .assert_tests import free_names, join_processes, parse_source
from .helper_calls import HelperCalls
from .instrumentation import AssertInstrumenter, InstanceAnalysis, is_assertion, mark_assertions
from .lasting_effects import leaves_nothing
from .process_effects import ProcessEffects
from .program_requests import RequestRewriter
from .statements import (
    FUNCTIONS,
    SCOPES,
    VariableFlow,
    bound_names,
    compile_statements,
    is_constant,
    is_docstring,
    name_of,
    of_kind,
    syntax_tree,
    walk_all,
)
from .suite import FIXTURES, Case, Suite
from .trust_analysis import TrustAnalysis, patches_modules, stdlib_names

_MODULE_FIXTURES = ("setUpModule", "tearDownModule")
_SETTINGS = frozenset(("maxDiff", "longMessage", "failureException"))


def is_test_class(node: ast.stmt) -> TypeGuard[ast.ClassDef]:
    if not isinstance(node, ast.ClassDef):
        return False
    return any(ast.unparse(base).rpartition(".")[2].endswith("TestCase") for base in node.bases)


def unittest_suite(source: str, entry_point: str) -> Suite:
    """Return the suite of a source with unittest classes. Raises ValueError if the source cannot be used."""
    tree = parse_source(source)
    everything = list(ast.walk(tree))
    free = free_names(everything)
    if entry_point.isidentifier():
        free.add(entry_point)
    standard = stdlib_names(everything, free, entry_point)
    remote = frozenset(free - standard.keys())
    families = _families(tree)
    test_classes = {node.name for node in itertools.chain(*families.values())}
    module = _SelfAttributesAsNames(test_classes).visit(copy.deepcopy(tree))
    analysis = TrustAnalysis(module.body, [], remote, entry_point)
    effects = ProcessEffects(everything, analysis, standard)
    cases = []
    for name, family in families.items():
        state = frozenset(_shared_state(tree, family))
        members = [node.name for node in family]
        for method in _methods(family):
            nodes = _used_nodes(module, members, method)
            case = Case(
                f"{name}.{method}",
                in_guest=analysis.guest_reason(nodes) or effects.guest_reason(nodes),
                compares=analysis.compares(nodes),
                asserts=any(map(is_assertion, walk_all(filter(_may_assert, nodes)))),
                variables=VariableFlow(state, state),
                unit=(name, method),
            )
            cases.append(case)
    reasons = [case.in_guest for case in cases]
    join_processes(reasons, [case.variables for case in cases])
    instrument = AssertInstrumenter(analysis, InstanceAnalysis(module.body, remote))
    rewrite = RequestRewriter(analysis, remote, HelperCalls(tree.body, remote, entry_point))
    # Without the check that ends the statements: here each method has its own (see `SuiteRunner`).
    marked = [instrument.visit(rewrite.visit(node)) for node in mark_assertions(tree.body, remote)[:-1]]
    return Suite(
        "unittest",
        tuple(replace(case, in_guest=reason) for case, reason in zip(cases, reasons, strict=True)),
        remote=remote,
        standard=standard,
        uses_random="random" in source,
        patches=patches_modules(everything),
        leaves_nothing=all(reasons) or leaves_nothing(tree.body, remote, standard),
        source=ast.unparse(tree),
        module=_compile_module([*map(ast.fix_missing_locations, marked)]),
    )


def count_methods(source: str) -> int:
    """Return the number of cases of `unittest_suite`. Raises ValueError if the source cannot be used."""
    tree = parse_source(source)
    _compile_module(tree.body)
    return sum(len(_methods(family)) for family in _families(tree).values())


def _compile_module(statements: list[ast.stmt]) -> CodeType:
    try:
        return compile_statements(statements, "<test>")
    except (SyntaxError, ValueError) as error:
        raise ValueError(f"tests cannot be compiled: {error}") from None


def _families(tree: ast.Module) -> dict[str, list[ast.ClassDef]]:
    """Return each test class with its base classes from the same source."""
    classes = _classes_in(tree)
    families = {}
    for name, node in classes.items():
        family = _ancestry(node, classes)
        if any(map(is_test_class, family)):
            families[name] = family
    return families


def _methods(family: Sequence[ast.ClassDef]) -> list[str]:
    """Return the names of a family's test methods, beginning with the base classes."""
    # A dict keeps the order, and a method that a subclass overrides keeps its place.
    names: dict[str, None] = {}
    for node in reversed(family):
        for item in node.body:
            if isinstance(item, FUNCTIONS) and item.name.startswith("test"):
                names[item.name] = None
    return list(names)


class _SelfAttributesAsNames(ast.NodeTransformer):
    """Transformer for analysis: in test classes, `self.x` and the method `x` become the name "self.x"."""

    def __init__(self, classes: set[str]) -> None:
        self._classes = classes
        self._depth = 0

    def visit_ClassDef(self, node: ast.ClassDef) -> Any:
        inside = node.name in self._classes
        self._depth += inside
        self.generic_visit(node)
        self._depth -= inside
        if inside:
            for item in node.body:
                if isinstance(item, FUNCTIONS):
                    item.name = f"self.{item.name}"
        return node

    def visit_Attribute(self, node: ast.Attribute) -> Any:
        self.generic_visit(node)
        if self._depth and name_of(node.value) in ("self", "cls"):
            return ast.Name(f"self.{node.attr}", node.ctx)
        return node


def _used_nodes(module: ast.Module, family: Sequence[str], method: str) -> list[ast.AST]:
    """Return the nodes of a module that a test method may execute: fixtures, class bodies, and mentioned helpers."""
    nodes: list[ast.AST] = []
    members: dict[str, list[ast.AST]] = {}
    for node in module.body:
        if isinstance(node, ast.ClassDef) and node.name in family:
            nodes.append(ast.ClassDef(node.name, node.bases, node.keywords, [], node.decorator_list))
            for item in node.body:
                if isinstance(item, SCOPES):
                    members.setdefault(item.name, []).append(item)
                else:
                    nodes.append(item)
        elif not isinstance(node, ast.Import | ast.ImportFrom):
            names = bound_names(node)
            for name in names:
                members.setdefault(name, []).append(node)
            if not names:
                nodes.append(node)
    todo = [*_MODULE_FIXTURES, *(f"self.{name}" for name in (*FIXTURES, method)), *mentioned_names(nodes)]
    while todo:
        found = members.pop(todo.pop(), [])
        nodes += found
        todo += mentioned_names(found)
    return nodes


def _may_assert(node: ast.AST) -> bool:
    return getattr(node, "name", "").removeprefix("self.") not in FIXTURES


def _shared_state(tree: ast.Module, family: Sequence[ast.ClassDef]) -> Iterator[str]:
    """Yield names for the state that test methods can share: "module", and classes with state of their own."""
    everything = list(ast.walk(tree))
    if any(map(_has_state, tree.body)) or any(of_kind(ast.Global, everything)):
        yield "module"
    owners = [part.value for part in of_kind(ast.Attribute, everything) if not isinstance(part.ctx, ast.Load)]
    named = set(map(name_of, owners))
    # `type(self).x = 1` and `self.__class__.x = 1` may set an attribute of any class.
    dynamic = any(isinstance(owner, ast.Call) or getattr(owner, "attr", "") == "__class__" for owner in owners)
    for node in family:
        names = {getattr(item, "name", "") for item in node.body}
        is_set = dynamic or node.name in named or not names.isdisjoint(("setUpClass", "tearDownClass"))
        if is_set or any(map(_has_state, node.body)):
            yield node.name


def _has_state(node: ast.stmt) -> bool:
    """Return whether a statement may bind a name to a value that can be changed, or do anything else."""
    if isinstance(node, (*SCOPES, ast.Import, ast.ImportFrom, ast.Pass)):
        return False
    return not is_docstring(node) and not is_constant(node, {"?"}, False)


def _classes_in(tree: ast.Module) -> dict[str, ast.ClassDef]:
    return {node.name: node for node in of_kind(ast.ClassDef, tree.body)}


def _ancestry(node: ast.ClassDef, classes: dict[str, ast.ClassDef]) -> list[ast.ClassDef]:
    """Return the class and its base classes from the same source, without repetition."""
    ancestors = [node]
    for ancestor in ancestors:
        for base in ancestor.bases:
            known = classes.get(name_of(base))
            if known is not None and known not in ancestors:
                ancestors.append(known)
    return ancestors


def keep_test_methods(source: str, units: Iterable[tuple[str, str]]) -> str:
    """Return the source with only the tests `units` (class, method), and the definitions that these tests mention."""
    tree = syntax_tree(source)
    classes = _classes_in(tree)
    mentioned = {*FIXTURES, *_MODULE_FIXTURES, *_SETTINGS}
    selected = set()
    for name, method in units:
        for ancestor in _ancestry(classes[name], classes):
            selected.add((ancestor.name, method))
            mentioned.add(ancestor.name)
    while True:  # until no kept definition mentions another one that is left out
        part = syntax_tree(source)
        part.body = [node for node in part.body if _is_needed(node, mentioned)]
        for name, node in _classes_in(part).items():
            left = []
            for item in node.body:
                if (name, getattr(item, "name", "")) in selected or _is_needed(item, mentioned):
                    left.append(item)
            node.body = left or [ast.Pass()]
        more = set(mentioned_names(part.body)) - mentioned
        if not more:
            return ast.unparse(part)
        mentioned |= more


def _is_needed(node: ast.stmt, mentioned: set[str]) -> bool:
    """Return whether a statement binds a name that is mentioned, or does anything but bind names."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        return True
    names = bound_names(node)
    return not names or not names.isdisjoint(mentioned) or any(name.startswith("__") for name in names)


def mentioned_names(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Yield the names, attributes and strings in some nodes, any of which may name a definition."""
    for part in walk_all(nodes):
        if isinstance(part, ast.Name):
            yield part.id
        elif isinstance(part, ast.Attribute):
            yield part.attr
        elif isinstance(part, ast.Constant) and isinstance(part.value, str):
            yield part.value
