"""Tests rewritten for the judge, so that it can tell what was compared and decide what Python would decide by identity.

`assert f(x) == y` becomes `assert COMPARE("==", f(x), y, False)`: the last argument tells that the sides are to be
shown in the other order (the value under test comes first). `a is b` becomes `SAME(a, b)` wherever it stands, and
`list(x)` becomes `list(ALL(x))`. Everything is evaluated once and in its order, as before.
"""

from __future__ import annotations

import ast
from typing import Any

from .demands import Demands
from .suite import ALL, COMPARE, SAME, TRUTH

_OPERATORS = {
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Is: "is",
    ast.IsNot: "is not",
    ast.In: "in",
    ast.NotIn: "not in",
}
_TAKE_ALL = ("list", "tuple", "set", "frozenset", "sorted")


class Instrument(ast.NodeTransformer):
    """See the module."""

    def __init__(self, demands: Demands) -> None:
        self._demands = demands

    def visit_Assert(self, node: ast.Assert) -> Any:
        test = node.test
        if isinstance(test, ast.Compare) and len(test.ops) == 1:
            left, right = test.left, test.comparators[0]
            swapped = self._demands.from_program(right) and not self._demands.from_program(left)
            name, sides = _OPERATORS[type(test.ops[0])], [self.visit(left), self.visit(right)]
            call = _call(COMPARE, [_constant(name, node), *sides, _constant(swapped, node)], node)
        elif isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            call = _call(TRUTH, [self.visit(test.operand), _constant(False, node)], node)
        else:
            call = _call(TRUTH, [self.visit(test), _constant(True, node)], node)
        message = self.visit(node.msg) if node.msg is not None else None
        return ast.copy_location(ast.Assert(call, message), node)

    def visit_Compare(self, node: ast.Compare) -> Any:
        self.generic_visit(node)
        if len(node.ops) != 1 or not isinstance(node.ops[0], ast.Is | ast.IsNot):
            return node
        same = _call(SAME, [node.left, node.comparators[0]], node)
        return same if isinstance(node.ops[0], ast.Is) else ast.copy_location(ast.UnaryOp(ast.Not(), same), node)

    def visit_Call(self, node: ast.Call) -> Any:
        self.generic_visit(node)
        takes_all = isinstance(node.func, ast.Name) and node.func.id in _TAKE_ALL
        if takes_all and len(node.args) == 1 and not isinstance(node.args[0], ast.Starred):
            node.args = [_call(ALL, node.args, node)]
        return node


def _constant(value: str | bool, where: ast.AST) -> ast.expr:
    return ast.copy_location(ast.Constant(value), where)


def _call(function: str, arguments: list[ast.expr], where: ast.AST) -> ast.Call:
    name = ast.copy_location(ast.Name(function, ast.Load()), where)
    return ast.copy_location(ast.Call(name, arguments, []), where)
