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
        changed = {part.target for part in ast.walk(node) if isinstance(part, ast.AugAssign)}
        read = {part.id for part in names if not isinstance(part.ctx, ast.Store) or part in changed}
        self.uses = read - set(_inner_bindings(node))
        self.kills: Set[str] = set()
        if isinstance(node, ast.Assign):
            self.kills = stored_names(*node.targets) - self.uses
        elif isinstance(node, (*SCOPES, ast.Import, ast.ImportFrom)):
            self.kills = self.binds - self.uses

    def live_before(self, live: Set[str]) -> set[str]:
        """Return the live names before this statement, given the live names after it."""
        return {*(live - self.kills), *self.uses}

    def without_asserts(self) -> ast.stmt:
        """Return the statement for a test of another part that needs it, where its own failure does not count."""
        node = _WithoutAsserts().visit(parse(ast.unparse(self.node)).body[0])
        caught = ast.ExceptHandler(ast.Name("Exception", ast.Load()), None, [ast.Pass()])
        return ast.fix_missing_locations(ast.Try([node], [caught], [], []))


class _WithoutAsserts(ast.NodeTransformer):
    def visit_Assert(self, node: ast.Assert) -> ast.Expr:
        return ast.Expr(node.test)


_LOOKS_UP_NAMES = frozenset(("globals", "locals", "vars", "eval", "exec"))


def unneeded_definitions(statements: Sequence[ast.stmt]) -> set[ast.stmt]:
    """Return the definitions and assignments without effect whose names no other statement mentions."""
    unneeded: set[ast.stmt] = set()
    while True:
        left = [node for node in statements if node not in unneeded]
        mentions = Counter(name for node in left for name in names_in(node) | _declared_global(node))
        more = {
            node
            for node in left
            if _has_no_effect(node) and all(mentions[name] <= (name in names_in(node)) for name in bound_names(node))
        }
        if not more or mentions.keys() & _LOOKS_UP_NAMES:
            return unneeded
        unneeded |= more


def _has_no_effect(node: ast.stmt) -> bool:
    """Return whether a statement only defines names: functions, classes, and variables whose values call nothing."""
    if isinstance(node, SCOPES):
        return not node.decorator_list
    if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
        return False
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    plain = all(isinstance(part, ast.Name | ast.Tuple | ast.List | ast.expr_context) for part in walk_all(targets))
    return plain and not any(isinstance(part, ast.Call | ast.Await | ast.NamedExpr) for part in ast.walk(node.value))


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


def last_name(function: ast.AST) -> str:
    """Return `f` for `f`, `g` for `m.g`, and an empty string for anything else."""
    return function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")


def spread(first: Set[str], bindings: Sequence[tuple[set[str], set[str]]]) -> frozenset[str]:
    """Return some names, and the names that are bound, directly or not, to what uses them.

    A binding is the names that it binds, and the names that it uses.
    """
    reached = set(first)
    changed = True
    while changed:
        changed = False
        for bound, used in bindings:
            if not bound <= reached and used & reached:
                reached |= bound
                changed = True
    return frozenset(reached)


def root_name(node: ast.AST) -> str:
    """Return `a` for `a`, `a.b` and `a[b].c`, and an empty string for anything else."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


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
    Imports, constants, the program's functions and plain functions and classes of the tests carry nothing.
    """

    reads: frozenset[str] = frozenset()
    """Variables whose earlier value matters to the test."""
    touches: frozenset[str] = frozenset()
    """Variables that the test may change or assign."""


class SharedVariables:
    """The variables of some tests, each a block of statements.

    `patches`: the tests may set attributes, even of modules. Names that are bound once, to a value that cannot be
    changed, are `fixed`. All other names are variables.
    """

    def __init__(self, blocks: Sequence[Sequence[ast.stmt]], patches: bool) -> None:
        self._blocks = [[Statement(number, node) for node in block] for number, block in enumerate(blocks)]
        everything = [statement for block in self._blocks for statement in block]
        self._bound = set().union(*(each.binds | stored_names(each.node) for each in everything))
        pairs = {(name, ast.unparse(each.node)) for each in everything for name in each.binds}
        times = Counter(name for name, _ in pairs)
        times.update(name for each in everything for name in _declared_global(each.node))
        once = [each for each in everything if each.binds and all(times[name] == 1 for name in each.binds)]
        stateless = [each for each in once if _is_stateless(each.node, patches)]
        self._functions = {name: _free_names(each.node) for each in stateless for name in each.binds}
        constants: set[str] = set()
        while more := {
            name
            for each in once
            if is_constant(each.node, self._bound - constants, patches)
            for name in each.binds - constants
        }:
            constants |= more
        self.fixed = frozenset(constants | self._functions.keys())
        self._groups: dict[str, set[str]] = {}
        for each in everything:
            together = self.variables_in(_mentioned_names(each))
            merged = together.union(*(self._groups.get(name, ()) for name in together))
            self._groups |= dict.fromkeys(merged, merged)

    def closure(self, names: Set[str]) -> set[str]:
        """Return some names, and the names that functions among them use."""
        seen: set[str] = set()
        todo = list(names)
        while todo:
            name = todo.pop()
            if name not in seen:
                seen.add(name)
                todo += self._functions.get(name, ())
        return seen

    def variables_in(self, names: Set[str]) -> set[str]:
        """Return the variables in the closure of some names."""
        return (self.closure(names) & self._bound) - self.fixed

    def touched_by(self, *statements: Statement) -> frozenset[str]:
        """Return the variables that some statements may change or assign."""
        names = self.variables_in(set().union(*map(_mentioned_names, statements)))
        return frozenset(names.union(*(self._groups[name] for name in names)))

    def flows(self) -> list[VariableFlow]:
        """Return the variable flow of each test."""
        flows = []
        for block in self._blocks:
            live: set[str] = set()
            for statement in reversed(block):
                live = statement.live_before(live)
            flows.append(VariableFlow(frozenset(self.variables_in(live)), self.touched_by(*block)))
        return flows


def _mentioned_names(statement: Statement) -> set[str]:
    return {*statement.binds, *statement.uses, *_declared_global(statement.node)}


def _declared_global(node: ast.AST) -> set[str]:
    return {name for part in ast.walk(node) if isinstance(part, ast.Global) for name in part.names}


def is_constant(node: ast.stmt, variables: Set[str], patches: bool) -> bool:
    """Return whether a statement binds names to values that cannot be changed."""
    if isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return all(isinstance(target, ast.Name) for target in targets) and _is_immutable(node.value, variables)
    return isinstance(node, ast.Import | ast.ImportFrom) and not patches


def _is_immutable(value: ast.expr | None, variables: Set[str]) -> bool:
    if isinstance(value, ast.Tuple):
        return all(_is_immutable(item, variables) for item in value.elts)
    if isinstance(value, ast.UnaryOp):
        return isinstance(value.operand, ast.Constant)
    return isinstance(value, ast.Constant) or (isinstance(value, ast.Name) and value.id not in variables)


def _is_stateless(node: ast.AST, patches: bool) -> bool:
    """Return whether a statement defines a function or class whose only state is that of the variables it uses."""
    if isinstance(node, ast.Assign):
        return isinstance(node.value, ast.Lambda) and _has_constant_defaults(node.value)
    if isinstance(node, ast.FunctionDef):
        return not patches and not node.decorator_list and _has_constant_defaults(node)
    if not isinstance(node, ast.ClassDef) or patches or node.decorator_list or node.keywords:
        return False
    return all(
        is_constant(item, {"?"}, patches)
        or isinstance(item, ast.Pass)
        or (isinstance(item, ast.FunctionDef) and _has_constant_defaults(item))
        or (isinstance(item, ast.Expr) and isinstance(item.value, ast.Constant))
        for item in node.body
    )


def _has_constant_defaults(node: ast.FunctionDef | ast.Lambda) -> bool:
    defaults = [*node.args.defaults, *filter(None, node.args.kw_defaults)]
    return all(isinstance(default, ast.Constant) for default in defaults)


def _free_names(node: ast.AST) -> set[str]:
    """Return the names that a function or class takes from outside."""
    arguments = {part.arg for part in ast.walk(node) if isinstance(part, ast.arg)}
    return names_in(node) - arguments - stored_names(node) | _declared_global(node)
