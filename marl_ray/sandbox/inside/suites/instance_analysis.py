"""Which operands of the tests are instances that the tests make of the program's classes, decided by their text.

`Vec(1, 2) * 3` and `x in Grid(2)` say that they are about the operators of a class, so the program is asked there. An
instance is made by calling a capitalised name of the program, or is in a variable that is bound to nothing else; what
an operator gives that has such an operand counts too (`Vec(1) + Vec(2)`). Results of functions and methods do not,
whatever the program returns there.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence

from .statements import imported_name

_NAMED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.ExceptHandler, ast.MatchAs, ast.MatchStar)
_Binding = tuple[str, ast.AST | None]
"""A name and what it is bound to; None for what is no expression."""


class InstanceAnalysis:
    """Of all tests of a problem. `remote` are the names that the program defines."""

    def __init__(self, statements: Sequence[ast.stmt], remote: Iterable[str]) -> None:
        bindings: dict[str, list[ast.AST | None]] = {}
        for statement in statements:
            for part in ast.walk(statement):
                for name, value in _bindings(part):
                    bindings.setdefault(name, []).append(value)
        self._classes = {name for name in remote if name[:1].isupper()}
        while more := {name for name, values in bindings.items() if all(map(self._is_class, values))} - self._classes:
            self._classes |= more
        self._variables = set(bindings)
        self._sum_is_pythons = "sum" not in bindings
        while less := {name for name in self._variables if not all(map(self.holds, bindings[name]))}:
            self._variables -= less

    def holds(self, node: ast.AST | None) -> bool:
        """Whether an expression is such an instance."""
        if isinstance(node, ast.Name):
            return node.id in self._variables
        if isinstance(node, ast.BinOp):
            return self.holds(node.left) or self.holds(node.right)
        return isinstance(node, ast.Call) and self._is_class(node.func)

    def sums(self, node: ast.Call) -> bool:
        """Whether it is `sum([Money(1), Money(2)])`: operators, though none is written."""
        if not (isinstance(node.func, ast.Name) and node.func.id == "sum" and self._sum_is_pythons):
            return False
        if len(node.args) not in (1, 2) or node.keywords:
            return False
        items = node.args[0]
        if isinstance(items, ast.ListComp | ast.GeneratorExp):
            return self.holds(items.elt)
        return isinstance(items, ast.List | ast.Tuple) and all(map(self.holds, items.elts))

    def _is_class(self, node: ast.AST | None) -> bool:
        return isinstance(node, ast.Name) and node.id in self._classes


def _bindings(part: ast.AST) -> Iterator[_Binding]:
    """What a node binds, that of nodes inside it excepted. Not `v += 1`: that has an operand `v`, if `v` is one."""
    if isinstance(part, ast.Assign):
        for target in part.targets:
            yield from _assigned(target, part.value)
    elif isinstance(part, ast.AnnAssign):
        yield from _assigned(part.target, part.value) if part.value is not None else ()
    elif isinstance(part, ast.For | ast.comprehension):
        items = part.iter.elts if isinstance(part.iter, ast.List | ast.Tuple) else [None]
        for item in items:
            yield from _assigned(part.target, item)
    elif isinstance(part, ast.AsyncFor | ast.NamedExpr):
        yield from _assigned(part.target, None)
    elif isinstance(part, ast.withitem) and part.optional_vars is not None:
        yield from _assigned(part.optional_vars, None)
    elif isinstance(part, ast.arg):
        yield part.arg, None
    elif isinstance(part, ast.alias):
        yield imported_name(part), None
    elif isinstance(part, _NAMED):
        yield part.name or "", None
    elif isinstance(part, ast.MatchMapping):
        yield part.rest or "", None


def _assigned(target: ast.AST, value: ast.AST | None) -> Iterator[_Binding]:
    if isinstance(target, ast.Name):
        yield target.id, value
    elif isinstance(target, ast.Tuple | ast.List):
        same = isinstance(value, ast.Tuple | ast.List) and len(value.elts) == len(target.elts)
        values = value.elts if same and isinstance(value, ast.Tuple | ast.List) else [None] * len(target.elts)
        for inner, item in zip(target.elts, values, strict=True):
            yield from _assigned(inner, item)
    elif isinstance(target, ast.Starred):
        yield from _assigned(target.value, None)
