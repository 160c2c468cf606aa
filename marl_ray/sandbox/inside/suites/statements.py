"""Statements of the tests: parsing, the names they bind and use, and the variables that tests share."""

from __future__ import annotations

import ast
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from types import CodeType

SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_AST_LOCK = threading.RLock()
"""Until Python 3.13 all threads share one recursion counter, and concurrent conversions of syntax trees may raise
`SystemError: AST constructor recursion depth mismatch`."""


def parse(source: str) -> ast.Module:
    """Parse a source, from any thread."""
    with _AST_LOCK:
        return ast.parse(source)


def compile_statements(statements: list[ast.stmt], filename: str) -> CodeType:
    """Compile statements, from any thread."""
    with _AST_LOCK:
        return compile(ast.Module(statements, []), filename, "exec", dont_inherit=True)


def walk_all(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Yield some nodes and all nodes below them."""
    for node in nodes:
        yield from ast.walk(node)


class Statement:
    """A top-level statement of the tests, and the number of its case.

    - `binds`: names that the statement binds, certainly or possibly
    - `uses`: names whose earlier value the statement depends on
    - `kills`: names whose earlier value no later statement depends on
    """

    def __init__(self, case: int, node: ast.stmt) -> None:
        self.case = case
        self.node = node
        self.binds = bound_names(node)
        names = {part for part in ast.walk(node) if isinstance(part, ast.Name)}
        self.uses = {part.id for part in names if isinstance(part.ctx, ast.Load)} - set(_inner_bindings(node))
        self.kills: Set[str] = set()
        if isinstance(node, ast.Assign):
            self.kills = stored_names(*node.targets) - self.uses
        elif isinstance(node, (*SCOPES, ast.Import, ast.ImportFrom)):
            self.kills = self.binds - self.uses

    def live_before(self, live: Set[str]) -> set[str]:
        """Return the live names before this statement, given the live names after it."""
        return {*(live - self.kills), *self.uses}

    def is_definition(self) -> bool:
        """Return whether the statement binds names to values that are never mutated."""
        if isinstance(self.node, ast.Assign):
            return isinstance(self.node.value, ast.Name | ast.Attribute | ast.Constant | ast.Lambda)
        return isinstance(self.node, (*SCOPES, ast.Import, ast.ImportFrom))

    def source(self) -> str:
        """Return the source for a test of another part that needs this statement, whose own failure does not count."""
        if self.is_definition():
            return ast.unparse(self.node)
        node = _WithoutAsserts().visit(parse(ast.unparse(self.node)).body[0])
        caught = ast.ExceptHandler(ast.Name("Exception", ast.Load()), None, [ast.Pass()])
        return ast.unparse(ast.fix_missing_locations(ast.Try([node], [caught], [], [])))


class _WithoutAsserts(ast.NodeTransformer):
    def visit_Assert(self, node: ast.Assert) -> ast.Expr:
        return ast.Expr(node.test)


def bound_names(node: ast.stmt) -> set[str]:
    """Return the names that a statement binds at the top level."""
    if isinstance(node, SCOPES):
        return {node.name}
    if isinstance(node, ast.Import | ast.ImportFrom):
        return {imported_name(item) for item in node.names}
    return stored_names(node)


def stored_names(*nodes: ast.AST) -> set[str]:
    """Return the names that are assigned or deleted anywhere in some nodes."""
    return {part.id for part in walk_all(nodes) if isinstance(part, ast.Name) and not isinstance(part.ctx, ast.Load)}


def names_in(*nodes: ast.AST) -> set[str]:
    return {part.id for part in walk_all(nodes) if isinstance(part, ast.Name)}


def imported_name(item: ast.alias) -> str:
    return (item.asname or item.name).partition(".")[0]


def _inner_bindings(statement: ast.stmt) -> Iterator[str]:
    """Yield the names that a statement binds before it uses them: loop targets, arguments and the like."""
    for node in ast.walk(statement):
        if isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
            yield from names_in(node.target)
        elif isinstance(node, ast.withitem) and node.optional_vars is not None:
            yield from names_in(node.optional_vars)
        elif isinstance(node, ast.ExceptHandler) and node.name:
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg


@dataclass(frozen=True, slots=True)
class VariableFlow:
    """Variables that a test shares with others: a test is not trusted if it reads one that an untrusted test touched.

    The text decides, conservatively: variables in one statement may be aliases of each other or hold each other.
    Imports, constants, the program's functions and plain functions of the tests carry nothing.
    """

    reads: frozenset[str] = frozenset()
    """Variables whose earlier value matters to the test."""
    touches: frozenset[str] = frozenset()
    """Variables that the test may change or assign."""


def variable_flows(blocks: Sequence[Sequence[ast.stmt]], patches: bool) -> list[VariableFlow]:
    """Return the variable flow of each test. `patches`: the tests may set attributes, even of modules."""
    statements = [[Statement(number, node) for node in block] for number, block in enumerate(blocks)]
    everything = [statement for block in statements for statement in block]
    bound = set().union(*(each.binds | stored_names(each.node) for each in everything))
    times = Counter(name for name, _ in {(name, ast.unparse(each.node)) for each in everything for name in each.binds})
    times.update(name for each in everything for name in _declared_global(each.node))
    constants = [each for each in everything if _is_constant(each.node, bound, patches)]
    constant = {name for each in constants for name in each.binds if times[name] == 1}
    functions = {
        each.node.name: _free_names(each.node)
        for each in everything
        if isinstance(each.node, ast.FunctionDef) and times[each.node.name] == 1 and _is_stateless(each.node, patches)
    }

    def variables_in(names: Set[str]) -> set[str]:
        """Return the variables among some names, and the variables that functions among them use."""
        seen: set[str] = set()
        todo = list(names)
        while todo:
            name = todo.pop()
            if name not in seen:
                seen.add(name)
                todo += functions.get(name, ())
        return (seen & bound) - constant - functions.keys()

    groups: dict[str, set[str]] = {}
    for each in everything:
        together = variables_in(_mentioned_names(each))
        merged = together.union(*(groups.get(name, ()) for name in together))
        groups |= dict.fromkeys(merged, merged)
    flows = []
    for block in statements:
        live: set[str] = set()
        for statement in reversed(block):
            live = statement.live_before(live)
        names = variables_in(set().union(*map(_mentioned_names, block)))
        touches = frozenset(names.union(*(groups[name] for name in names)))
        flows.append(VariableFlow(frozenset(variables_in(live)), touches))
    return flows


def _mentioned_names(statement: Statement) -> set[str]:
    return {*statement.binds, *statement.uses, *_declared_global(statement.node)}


def _declared_global(node: ast.AST) -> set[str]:
    return {name for part in ast.walk(node) if isinstance(part, ast.Global) for name in part.names}


def _is_constant(node: ast.stmt, bound: Set[str], patches: bool) -> bool:
    if isinstance(node, ast.Assign):
        value = node.value
        return isinstance(value, ast.Constant) or (isinstance(value, ast.Name) and value.id not in bound)
    return isinstance(node, ast.Import | ast.ImportFrom) and not patches


def _is_stateless(node: ast.FunctionDef, patches: bool) -> bool:
    defaults = [*node.args.defaults, *filter(None, node.args.kw_defaults)]
    return not patches and not node.decorator_list and all(isinstance(default, ast.Constant) for default in defaults)


def _free_names(node: ast.FunctionDef) -> set[str]:
    """Return the names that a function takes from outside."""
    arguments = {part.arg for part in ast.walk(node) if isinstance(part, ast.arg)}
    return names_in(node) - arguments - stored_names(node) | _declared_global(node)
