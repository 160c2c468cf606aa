"""Tests rewritten for the judge, so that it can tell what was compared and decide what Python would decide by identity.

`assert f(x) == y` becomes `assert COMPARE("==", f(x), y, False)`: the last argument tells that the sides are to be
shown in the other order (the value under test comes first). `a is b` becomes `SAME(a, b)` wherever it stands, and
`list(x)` becomes `list(ALL(x))`. Operators of instances that the test makes (see `instance_analysis`) become `OPERATE("mul", v,
3)`, which may ask the program. Everything is evaluated once and in its order, as before.
"""

from __future__ import annotations

import ast
from typing import Any

from .instance_analysis import InstanceAnalysis
from .suite import ALL, COMPARE, OPERATE, SAME, TRUTH
from .trust_analysis import TrustAnalysis

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
_CALCULATE = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.Div: "truediv",
    ast.FloorDiv: "floordiv",
    ast.Mod: "mod",
    ast.Pow: "pow",
    ast.MatMult: "matmul",
    ast.BitAnd: "and_",
    ast.BitOr: "or_",
    ast.BitXor: "xor",
    ast.LShift: "lshift",
    ast.RShift: "rshift",
}
"""By the names that the module `operator` has for them."""
_TAKE_ALL = ("list", "tuple", "set", "frozenset", "sorted")


class AssertInstrumenter(ast.NodeTransformer):
    """See the module."""

    def __init__(self, demands: TrustAnalysis, instances: InstanceAnalysis) -> None:
        self._demands = demands
        self._instances = instances

    def visit_Assert(self, node: ast.Assert) -> Any:
        test = node.test
        if isinstance(test, ast.Compare) and len(test.ops) == 1:
            left, right = test.left, test.comparators[0]
            swapped = self._demands.from_program(right) and not self._demands.from_program(left)
            flags = [_constant(swapped, node), _constant(self._looks_into_instance(test), node)]
            name, sides = _OPERATORS[type(test.ops[0])], [self.visit(left), self.visit(right)]
            call = _call(COMPARE, [_constant(name, node), *sides, *flags], node)
        elif isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            call = _call(TRUTH, [self.visit(test.operand), _constant(False, node)], node)
        else:
            call = _call(TRUTH, [self.visit(test), _constant(True, node)], node)
        message = self.visit(node.msg) if node.msg is not None else None
        return ast.copy_location(ast.Assert(call, message), node)

    def visit_Compare(self, node: ast.Compare) -> Any:
        looks = self._looks_into_instance(node)
        self.generic_visit(node)
        if looks:
            return _call(OPERATE, [_constant(_OPERATORS[type(node.ops[0])], node), node.left, *node.comparators], node)
        if len(node.ops) != 1 or not isinstance(node.ops[0], ast.Is | ast.IsNot):
            return node
        same = _call(SAME, [node.left, node.comparators[0]], node)
        return same if isinstance(node.ops[0], ast.Is) else ast.copy_location(ast.UnaryOp(ast.Not(), same), node)

    def _looks_into_instance(self, node: ast.Compare) -> bool:
        """Whether it is `x in v` of an instance that the test has made."""
        asks = len(node.ops) == 1 and isinstance(node.ops[0], ast.In | ast.NotIn)
        return asks and self._instances.holds(node.comparators[0])

    def visit_BinOp(self, node: ast.BinOp) -> Any:
        made = self._instances.holds(node)
        self.generic_visit(node)
        if not made:
            return node
        return _call(OPERATE, [_constant(_CALCULATE[type(node.op)], node), node.left, node.right], node)

    def visit_AugAssign(self, node: ast.AugAssign) -> Any:
        made = self._instances.holds(node.target) or self._instances.holds(node.value)
        self.generic_visit(node)
        if not made or not isinstance(node.target, ast.Name):
            return node
        old = ast.copy_location(ast.Name(node.target.id, ast.Load()), node)
        name = _constant(f"i{_CALCULATE[type(node.op)].rstrip('_')}", node)
        return ast.copy_location(ast.Assign([node.target], _call(OPERATE, [name, old, node.value], node)), node)

    def visit_Call(self, node: ast.Call) -> Any:
        sums = self._instances.sums(node)
        self.generic_visit(node)
        if sums:
            start = node.args[1] if len(node.args) > 1 else ast.copy_location(ast.Constant(0), node)
            return _call(OPERATE, [_constant("sum", node), node.args[0], start], node)
        takes_all = isinstance(node.func, ast.Name) and node.func.id in _TAKE_ALL
        if takes_all and len(node.args) == 1 and not isinstance(node.args[0], ast.Starred):
            node.args = [_call(ALL, node.args, node)]
        return node


def _constant(value: str | bool, where: ast.AST) -> ast.expr:
    return ast.copy_location(ast.Constant(value), where)


def _call(function: str, arguments: list[ast.expr], where: ast.AST) -> ast.Call:
    name = ast.copy_location(ast.Name(function, ast.Load()), where)
    return ast.copy_location(ast.Call(name, arguments, []), where)
