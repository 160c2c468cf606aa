"""Parser of unittest classes: one case per test method, and where each method can be evaluated.

The judge runs the methods itself, with the class under test as a proxy. A method runs in the guest if it, its fixtures
or the helpers that it uses need the program's class as a class, pass the program a function, or observe or change
the process or the files of the program.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterable, Iterator, Sequence
from types import CodeType
from typing import Any, TypeGuard

from .assert_tests import free_names, join_processes, parse_source
from .helper_calls import HelperCalls
from .instrumentation import AssertInstrumenter, InstanceAnalysis, is_assertion, mark_assertions
from .lasting_effects import leaves_nothing
from .process_effects import ProcessEffects
from .program_requests import RequestRewriter
from .statements import SCOPES, VariableFlow, bound_names, compile_statements, is_constant, parse, walk_all
from .suite import FIXTURES, Case, Suite
from .trust_analysis import TrustAnalysis, patches_modules, stdlib_names

_MODULE_FIXTURES = ("setUpModule", "tearDownModule")
_SETTINGS = frozenset(("maxDiff", "longMessage", "failureException"))


def is_test_class(node: ast.stmt) -> TypeGuard[ast.ClassDef]:
    bases = node.bases if isinstance(node, ast.ClassDef) else []
    return any(ast.unparse(base).rpartition(".")[2].endswith("TestCase") for base in bases)


def _is_test_method(node: ast.stmt) -> TypeGuard[ast.FunctionDef | ast.AsyncFunctionDef]:
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test")


def unittest_suite(source: str, entry_point: str) -> Suite:
    """Return the suite of a source with unittest classes. Raises ValueError if the source cannot be used."""
    tree = parse_source(source)
    everything = list(ast.walk(tree))
    free = free_names(everything) | ({entry_point} if entry_point.isidentifier() else set())
    standard = stdlib_names(everything, free, entry_point)
    remote = free - standard.keys()
    families = _families(tree)
    module = _SelfAttributesAsNames({node.name for family in families.values() for node in family}).visit(
        copy.deepcopy(tree)
    )
    analysis = TrustAnalysis(module.body, [], remote, entry_point)
    effects = ProcessEffects(everything, analysis, standard)
    units, reasons, flows, uses = [], [], [], []
    for name, family in families.items():
        state = frozenset(_shared_state(tree, family))
        for method in _methods(family):
            units.append((name, method))
            uses.append(_used_nodes(module, [node.name for node in family], method))
            reasons.append(analysis.guest_reason(uses[-1]) or effects.guest_reason(uses[-1]))
            flows.append(VariableFlow(state, state))
    join_processes(reasons, flows)
    instrument = AssertInstrumenter(analysis, InstanceAnalysis(module.body, remote))
    helper_calls = HelperCalls(tree.body, frozenset(remote), entry_point)
    rewrite = RequestRewriter(analysis, frozenset(remote), helper_calls)
    marked = [instrument.visit(rewrite.visit(node)) for node in mark_assertions(tree.body, remote)[:-1]]
    cases = [
        Case(
            ".".join(unit),
            in_guest=reason,
            compares=analysis.compares(nodes),
            asserts=any(map(is_assertion, walk_all(filter(_may_assert, nodes)))),
            variables=flow,
            unit=unit,
        )
        for unit, nodes, reason, flow in zip(units, uses, reasons, flows, strict=True)
    ]
    return Suite(
        "unittest",
        tuple(cases),
        remote=frozenset(remote),
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
    families = {name: _ancestry(node, classes) for name, node in classes.items()}
    return {name: family for name, family in families.items() if any(map(is_test_class, family))}


def _methods(family: Sequence[ast.ClassDef]) -> list[str]:
    """Return the names of a family's test methods, beginning with the base classes."""
    names = [item.name for node in reversed(family) for item in node.body if _is_test_method(item)]
    return list(dict.fromkeys(names))


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
        for item in node.body if inside else ():
            if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef):
                item.name = f"self.{item.name}"
        return node

    def visit_Attribute(self, node: ast.Attribute) -> Any:
        self.generic_visit(node)
        is_own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls") and self._depth
        return ast.Name(f"self.{node.attr}", node.ctx) if is_own else node


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
            nodes += [] if names else [node]
    todo = [*_MODULE_FIXTURES, *(f"self.{name}" for name in (*FIXTURES, method))]
    todo += [name for node in nodes for name in mentioned_names(node)]
    while todo:
        found = members.pop(todo.pop(), [])
        nodes += found
        todo += [name for node in found for name in mentioned_names(node)]
    return nodes


def _may_assert(node: ast.AST) -> bool:
    return getattr(node, "name", "").removeprefix("self.") not in FIXTURES


def _shared_state(tree: ast.Module, family: Sequence[ast.ClassDef]) -> Iterator[str]:
    """Yield names for the state that test methods can share: "module", and classes with state of their own."""
    everything = list(ast.walk(tree))
    if any(map(_has_state, tree.body)) or any(isinstance(node, ast.Global) for node in everything):
        yield "module"
    stores = [
        node.value for node in everything if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load)
    ]
    named = {node.id for node in stores if isinstance(node, ast.Name)}
    dynamic = any(isinstance(node, ast.Call) or getattr(node, "attr", "") == "__class__" for node in stores)
    for node in family:
        names = {getattr(item, "name", "") for item in node.body}
        if dynamic or node.name in named or names & {"setUpClass", "tearDownClass"} or any(map(_has_state, node.body)):
            yield node.name


def _has_state(node: ast.stmt) -> bool:
    """Return whether a statement may bind a name to a value that can be changed, or do anything else."""
    if isinstance(node, (*SCOPES, ast.Import, ast.ImportFrom, ast.Pass)):
        return False
    is_docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return not is_docstring and not is_constant(node, {"?"}, False)


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


def keep_test_methods(source: str, units: Iterable[tuple[str, str]]) -> str:
    """Return the source with only the tests `units` (class, method), and the definitions that these tests mention."""
    tree = parse(source)
    classes = _classes_in(tree)
    selected = {(ancestor.name, method) for name, method in units for ancestor in _ancestry(classes[name], classes)}
    mentioned = {*FIXTURES, *_MODULE_FIXTURES, *_SETTINGS, *(name for name, _ in selected)}
    while True:
        part = parse(source)
        part.body = [node for node in part.body if _is_needed(node, mentioned)]
        for name, node in _classes_in(part).items():
            left = [
                item
                for item in node.body
                if (name, getattr(item, "name", "")) in selected or _is_needed(item, mentioned)
            ]
            node.body = left or [ast.Pass()]
        more = {name for node in part.body for name in mentioned_names(node)} - mentioned
        if not more:
            return ast.unparse(part)
        mentioned |= more


def _is_needed(node: ast.stmt, mentioned: set[str]) -> bool:
    """Return whether a statement binds a name that is mentioned, or does anything but bind names."""
    names = set() if isinstance(node, ast.Import | ast.ImportFrom) else bound_names(node)
    return not names or not names.isdisjoint(mentioned) or any(name.startswith("__") for name in names)


def mentioned_names(node: ast.AST) -> Iterator[str]:
    """Yield the names, attributes and strings in a node, any of which may name a definition."""
    for part in ast.walk(node):
        if isinstance(part, ast.Name):
            yield part.id
        elif isinstance(part, ast.Attribute):
            yield part.attr
        elif isinstance(part, ast.Constant) and isinstance(part.value, str):
            yield part.value
