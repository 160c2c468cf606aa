"""Statements of the tests: parsing, the names they bind and use, and the variables that tests share."""

from __future__ import annotations

import ast
import itertools
import threading
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from types import CodeType
from typing import TypeVar

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
SCOPES = (*FUNCTIONS, ast.ClassDef)
SyntaxNode = TypeVar("SyntaxNode", bound=ast.AST)
_AST_LOCK = threading.RLock()
"""Until Python 3.13 all threads share one recursion counter, and concurrent conversions of syntax trees may raise
`SystemError: AST constructor recursion depth mismatch`."""


def syntax_tree(source: str) -> ast.Module:
    """Parse a source, from any thread and without its warnings. Raises SyntaxError, or ValueError if it has NUL."""
    with _AST_LOCK, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(source)


def compile_statements(statements: list[ast.stmt], filename: str) -> CodeType:
    """Compile statements, from any thread."""
    with _AST_LOCK:
        return compile(ast.Module(statements, []), filename, "exec", dont_inherit=True)


def walk_all(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Yield some nodes and all nodes below them."""
    for node in nodes:
        yield from ast.walk(node)


def of_kind(kind: type[SyntaxNode] | tuple[type[SyntaxNode], ...], nodes: Iterable[ast.AST]) -> Iterator[SyntaxNode]:
    """Yield the nodes of one kind, or of several kinds."""
    for node in nodes:
        if isinstance(node, kind):
            yield node


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
        parts = list(ast.walk(node))
        # The parser stores the target of `x += 1`, which reads the variable too.
        changed = {part.target for part in of_kind(ast.AugAssign, parts)}
        read = set()
        for name in of_kind(ast.Name, parts):
            if not isinstance(name.ctx, ast.Store) or name in changed:
                read.add(name.id)
        self.uses = read - set(_inner_bindings(node))
        # Only certain bindings: a name that an `if` or a loop binds may keep its earlier value.
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
        node = _WithoutAsserts().visit(syntax_tree(ast.unparse(self.node)).body[0])
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
        mentions: Counter[str] = Counter()
        for node in left:
            mentions.update(names_in(node) | _declared_global(node))
        if mentions.keys() & _LOOKS_UP_NAMES:
            return unneeded
        more = set()
        for node in left:
            # A statement may mention its own names, as a recursive function does.
            own = names_in(node)
            if _has_no_effect(node) and all(mentions[name] <= (name in own) for name in bound_names(node)):
                more.add(node)
        if not more:
            return unneeded
        unneeded |= more


def _has_no_effect(node: ast.stmt) -> bool:
    """Return whether a statement only defines names: functions, classes, and variables whose values call nothing."""
    if isinstance(node, SCOPES):
        return not node.decorator_list
    if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
        return False
    for part in walk_all(targets_of(node)):
        if not isinstance(part, ast.Name | ast.Tuple | ast.List | ast.expr_context):
            return False
    return not any(of_kind((ast.Call, ast.Await, ast.NamedExpr), ast.walk(node.value)))


def targets_of(node: ast.Assign | ast.AnnAssign | ast.AugAssign | ast.NamedExpr) -> Sequence[ast.expr]:
    """Return the targets of an assignment, of which only `a = b = 1` has several."""
    return node.targets if isinstance(node, ast.Assign) else [node.target]


def arguments_of(call: ast.Call) -> list[ast.expr]:
    """Return the arguments of a call, with keywords or not."""
    return [*call.args, *(keyword.value for keyword in call.keywords)]


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


def name_of(node: ast.AST | None) -> str:
    """Return `f` for `f`, and an empty string for anything else."""
    return node.id if isinstance(node, ast.Name) else ""


def last_name(function: ast.AST) -> str:
    """Return `f` for `f`, `g` for `m.g`, and an empty string for anything else."""
    return name_of(function) or getattr(function, "attr", "")


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
    return name_of(node)


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
        everything = list(itertools.chain(*self._blocks))
        self._bound: set[str] = set()
        # Several tests may make the same definition, which counts once.
        definitions: set[tuple[str, str]] = set()
        times: Counter[str] = Counter()
        for each in everything:
            self._bound |= each.binds | stored_names(each.node)
            source = ast.unparse(each.node)
            definitions.update((name, source) for name in each.binds)
            times.update(_declared_global(each.node))
        times.update(name for name, _ in definitions)
        once = [each for each in everything if each.binds and all(times[name] == 1 for name in each.binds)]
        self._functions: dict[str, set[str]] = {}
        for each in once:
            if _is_stateless(each.node, patches):
                self._functions |= dict.fromkeys(each.binds, _free_names(each.node))
        self.fixed = frozenset(self._constants(once, patches) | self._functions.keys())
        # Variables in one statement may hold each other, and so may the variables of two statements that share one.
        self._groups: dict[str, set[str]] = {}
        for each in everything:
            together = self.variables_in(_mentioned_names(each))
            merged = together.union(*(self._groups.get(name, ()) for name in together))
            self._groups |= dict.fromkeys(merged, merged)

    def _constants(self, once: Sequence[Statement], patches: bool) -> set[str]:
        """Return the names of constants, and of constants made of these, given the statements whose names are bound
        once.
        """
        constants: set[str] = set()
        while True:
            variables = self._bound - constants
            more: set[str] = set()
            for each in once:
                if is_constant(each.node, variables, patches):
                    more |= each.binds
            if more <= constants:
                return constants
            constants |= more

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
    names: set[str] = set()
    for part in of_kind(ast.Global, ast.walk(node)):
        names.update(part.names)
    return names


def is_constant(node: ast.stmt, variables: Set[str], patches: bool) -> bool:
    """Return whether a statement binds names to values that cannot be changed."""
    if isinstance(node, ast.Assign | ast.AnnAssign):
        return all(map(name_of, targets_of(node))) and _is_immutable(node.value, variables)
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
    for item in node.body:
        if isinstance(item, ast.FunctionDef):
            if not _has_constant_defaults(item):
                return False
        elif not isinstance(item, ast.Pass) and not is_docstring(item) and not is_constant(item, {"?"}, patches):
            return False
    return True


def is_docstring(node: ast.AST) -> bool:
    """Return whether a statement is a string or another constant, which does nothing."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def defaults_of(function: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> list[ast.expr]:
    """Return the default values of a function's parameters."""
    return [*function.args.defaults, *filter(None, function.args.kw_defaults)]


def _has_constant_defaults(function: ast.FunctionDef | ast.Lambda) -> bool:
    return all(isinstance(default, ast.Constant) for default in defaults_of(function))


def _free_names(node: ast.AST) -> set[str]:
    """Return the names that a function or class takes from outside."""
    arguments = {part.arg for part in of_kind(ast.arg, ast.walk(node))}
    return names_in(node) - arguments - stored_names(node) | _declared_global(node)
