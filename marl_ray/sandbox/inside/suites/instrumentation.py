"""Instrumentation of asserts, which reports the compared values to the judge and lets it decide identity checks.

`assert f(x) == y` becomes `assert COMPARE("==", f(x), y, swapped, made)`, `a is b` becomes `SAME(a, b)`, and `list(x)`
becomes `list(ALL(x))`. Operators of instances that the test makes become `OPERATE("mul", v, 3)`, which may ask the
program. Everything is still evaluated once and in order.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from .statements import imported_name, walk_all
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
_ARITHMETIC = {
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
"""Names in the module `operator`."""
_CONSUMERS = ("list", "tuple", "set", "frozenset", "sorted")


class AssertInstrumenter(ast.NodeTransformer):
    """Transformer of a test's statements. New nodes have no location."""

    def __init__(self, analysis: TrustAnalysis, instances: InstanceAnalysis) -> None:
        self._analysis = analysis
        self._instances = instances

    def visit_Assert(self, node: ast.Assert) -> Any:
        test = node.test
        if isinstance(test, ast.Compare) and len(test.ops) == 1:
            left, right = test.left, test.comparators[0]
            swapped = self._analysis.from_program(right) and not self._analysis.from_program(left)
            made = self._tests_membership(test)
            call = _call(COMPARE, _OPERATORS[type(test.ops[0])], self.visit(left), self.visit(right), swapped, made)
        elif isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            call = _call(TRUTH, self.visit(test.operand), False)
        else:
            call = _call(TRUTH, self.visit(test), True)
        return ast.Assert(call, self.visit(node.msg) if node.msg is not None else None)

    def visit_Compare(self, node: ast.Compare) -> Any:
        membership = self._tests_membership(node)
        self.generic_visit(node)
        if membership:
            return _call(OPERATE, _OPERATORS[type(node.ops[0])], node.left, *node.comparators)
        if len(node.ops) != 1 or not isinstance(node.ops[0], ast.Is | ast.IsNot):
            return node
        same = _call(SAME, node.left, node.comparators[0])
        return same if isinstance(node.ops[0], ast.Is) else ast.UnaryOp(ast.Not(), same)

    def _tests_membership(self, node: ast.Compare) -> bool:
        """Return whether this is `x in v` for an instance `v` that the test makes."""
        membership = len(node.ops) == 1 and isinstance(node.ops[0], ast.In | ast.NotIn)
        return membership and self._instances.is_instance(node.comparators[0])

    def visit_BinOp(self, node: ast.BinOp) -> Any:
        made = self._instances.is_instance(node)
        self.generic_visit(node)
        return _call(OPERATE, _ARITHMETIC[type(node.op)], node.left, node.right) if made else node

    def visit_AugAssign(self, node: ast.AugAssign) -> Any:
        made = self._instances.is_instance(node.target) or self._instances.is_instance(node.value)
        self.generic_visit(node)
        if not made or not isinstance(node.target, ast.Name):
            return node
        name, old = f"i{_ARITHMETIC[type(node.op)].rstrip('_')}", ast.Name(node.target.id, ast.Load())
        return ast.Assign([node.target], _call(OPERATE, name, old, node.value))

    def visit_Call(self, node: ast.Call) -> Any:
        is_sum = self._instances.is_sum(node)
        self.generic_visit(node)
        if is_sum:
            return _call(OPERATE, "sum", node.args[0], node.args[1] if len(node.args) > 1 else 0)
        takes_all = isinstance(node.func, ast.Name) and node.func.id in _CONSUMERS
        if takes_all and len(node.args) == 1 and not isinstance(node.args[0], ast.Starred):
            node.args = [_call(ALL, node.args[0])]
        return node


def _call(function: str, *arguments: ast.expr | str | int) -> ast.Call:
    nodes = [argument if isinstance(argument, ast.expr) else ast.Constant(argument) for argument in arguments]
    return ast.Call(ast.Name(function, ast.Load()), nodes, [])


NAMING_NODES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.ExceptHandler, ast.MatchAs, ast.MatchStar)


class InstanceAnalysis:
    """Analysis of which operands are instances that the tests make of the program's classes, from the tests' text.

    `Vec(1, 2) * 3` and `x in Grid(2)` are visibly tests of a class's operators, so the program is asked there. An
    instance is a call of a capitalised name of the program, a variable that is bound to nothing else, or the result of
    an operator with such an operand. Results of functions and methods never count, whatever the program returns there.
    """

    def __init__(self, statements: Sequence[ast.stmt], remote: Iterable[str]) -> None:
        bindings: dict[str, list[ast.AST | None]] = {}
        for part in walk_all(statements):
            for name, value in _bindings(part):
                bindings.setdefault(name, []).append(value)
        self._classes = {name for name in remote if name[:1].isupper()}
        while more := {name for name, values in bindings.items() if all(map(self._is_class, values))} - self._classes:
            self._classes |= more
        self._variables = set(bindings)
        self._sum_is_builtin = "sum" not in bindings
        while less := {name for name in self._variables if not all(map(self.is_instance, bindings[name]))}:
            self._variables -= less

    def is_instance(self, node: ast.AST | None) -> bool:
        """Return whether an expression is such an instance."""
        if isinstance(node, ast.Name):
            return node.id in self._variables
        if isinstance(node, ast.BinOp):
            return self.is_instance(node.left) or self.is_instance(node.right)
        return isinstance(node, ast.Call) and self._is_class(node.func)

    def is_sum(self, node: ast.Call) -> bool:
        """Return whether this is `sum([Money(1), Money(2)])`, which applies operators too."""
        is_builtin_sum = isinstance(node.func, ast.Name) and node.func.id == "sum" and self._sum_is_builtin
        if not is_builtin_sum or len(node.args) not in (1, 2) or node.keywords:
            return False
        items = node.args[0]
        if isinstance(items, ast.ListComp | ast.GeneratorExp):
            return self.is_instance(items.elt)
        return isinstance(items, ast.List | ast.Tuple) and all(map(self.is_instance, items.elts))

    def _is_class(self, node: ast.AST | None) -> bool:
        return isinstance(node, ast.Name) and node.id in self._classes


def _bindings(part: ast.AST) -> Iterator[tuple[str, ast.AST | None]]:
    """Yield the names that a node itself binds, without its child nodes, and the expression (or None) of each.

    `v += 1` is no binding: `v` is its operand.
    """
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
    elif isinstance(part, NAMING_NODES):
        yield part.name or "", None
    elif isinstance(part, ast.MatchMapping):
        yield part.rest or "", None


def _assigned(target: ast.AST, value: ast.AST | None) -> Iterator[tuple[str, ast.AST | None]]:
    if isinstance(target, ast.Name):
        yield target.id, value
    elif isinstance(target, ast.Tuple | ast.List):
        values: Sequence[ast.AST | None] = value.elts if isinstance(value, ast.Tuple | ast.List) else []
        if len(values) != len(target.elts):
            values = [None] * len(target.elts)
        for inner, item in zip(target.elts, values, strict=True):
            yield from _assigned(inner, item)
    elif isinstance(target, ast.Starred):
        yield from _assigned(target.value, None)
