"""What the statements of the tests have to do with each other: the names they bind and use."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Set

from .syntax import parse

_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


class Statement:
    """A top-level statement of the tests, and the case it belongs to.

    `binds`: names that it gives a meaning, surely or perhaps. `uses`: names whose meaning before it matters to it.
    `kills`: names whose meaning before it matters to nobody behind it.
    """

    def __init__(self, case: int, node: ast.stmt) -> None:
        self.case = case
        self.node = node
        self.binds = bound_names(node)
        self.uses = _loaded(node) - set(_own(node))
        self.kills: Set[str] = set()
        if isinstance(node, ast.Assign):
            self.kills = stored_names(*node.targets) - self.uses
        elif isinstance(node, (*_SCOPES, ast.Import, ast.ImportFrom)):
            self.kills = self.binds - self.uses

    def before(self, live: Set[str]) -> set[str]:
        """The names that matter before it, from those that matter behind it."""
        return {*(live - self.kills), *self.uses}

    def is_definition(self) -> bool:
        """Whether it binds names to what nobody changes afterwards."""
        if isinstance(self.node, ast.Assign):
            return isinstance(self.node.value, ast.Name | ast.Attribute | ast.Constant | ast.Lambda)
        return isinstance(self.node, (*_SCOPES, ast.Import, ast.ImportFrom))

    def source(self) -> str:
        """What to run where another part's test needs this: its own failure is not that test's."""
        if self.is_definition():
            return ast.unparse(self.node)
        node = _WithoutAsserts().visit(parse(ast.unparse(self.node)).body[0])
        caught = ast.ExceptHandler(ast.Name("Exception", ast.Load()), None, [ast.Pass()])
        return ast.unparse(ast.fix_missing_locations(ast.Try([node], [caught], [], [])))


def bound_names(node: ast.stmt) -> set[str]:
    """Names that a statement binds at the top level."""
    if isinstance(node, _SCOPES):
        return {node.name}
    if isinstance(node, ast.Import | ast.ImportFrom):
        return {imported_name(item) for item in node.names}
    return stored_names(node)


def stored_names(*nodes: ast.AST) -> set[str]:
    """Names that are assigned to, or deleted, anywhere in some nodes."""
    parts = (part for node in nodes for part in ast.walk(node))
    return {part.id for part in parts if isinstance(part, ast.Name) and not isinstance(part.ctx, ast.Load)}


def imported_name(item: ast.alias) -> str:
    """The name that an import binds."""
    return (item.asname or item.name).partition(".")[0]


def _loaded(node: ast.AST) -> set[str]:
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load)}


def _own(statement: ast.stmt) -> Iterator[str]:
    """Names that a statement binds before it uses them: targets of loops, arguments, and the like."""
    for node in ast.walk(statement):
        targets: Iterable[ast.AST] = ()
        if isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
            targets = [node.target]
        elif isinstance(node, ast.withitem) and node.optional_vars is not None:
            targets = [node.optional_vars]
        elif isinstance(node, ast.ExceptHandler) and node.name:
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        yield from (part.id for target in targets for part in ast.walk(target) if isinstance(part, ast.Name))


class _WithoutAsserts(ast.NodeTransformer):
    """Evaluates what is asserted, without a verdict."""

    def visit_Assert(self, node: ast.Assert) -> ast.Expr:
        return ast.Expr(node.test)
