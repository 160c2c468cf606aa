"""Instrumentation of asserts, which reports the compared values to the judge and lets it decide identity checks.

`assert f(x) == y` becomes `assert COMPARE("==", f(x), y, swapped, made)`, and `a is b` becomes `SAME(a, b)`. Operators
of instances that the test makes become `OPERATE("mul", v, 3)`, which may ask the program. Everything is still evaluated
once and in order.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterable, Iterator, Sequence, Set
from typing import Any

from .statements import imported_name, last_name, names_in, parse, walk_all
from .suite import ASKED, COMPARE, FIXTURES, OPERATE, REACHED, SAME, TRUTH
from .trust_analysis import TrustAnalysis, is_assertion

OPERATORS = {
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
ARITHMETIC = {
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


def mark_assertions(
    block: Sequence[ast.stmt], remote: Iterable[str], analysis: TrustAnalysis | None = None
) -> list[ast.stmt]:
    """Return copies of a test's statements that raise RuntimeError at their end if no assertion was reached.

    The tests' text decides whether an assertion is ever evaluated, but only its execution tells whether this one was:
    `for x in f(): assert x` asserts nothing if the program returns an empty list. That may be the right result, so a
    test with a loop over values of the program passes then, but is not trusted. None: there is no such loop.
    """
    statements: list[ast.stmt] = []
    marker = _AssertionMarker(frozenset(remote))
    for node in copy.deepcopy(block):
        marked = marker.visit(node)
        statements += marked if isinstance(marked, list) else [marked]
    has_loop = analysis is not None and any(
        isinstance(part, ast.For) and analysis.from_program(part.iter) for part in walk_all(block)
    )
    ending = f"{ASKED}(0)" if has_loop else "raise RuntimeError('no assertion was reached')"
    return statements + _statements(f"if not {REACHED}: {ending}")


def _statements(source: str) -> list[ast.stmt]:
    return parse(source).body


class _AssertionMarker(ast.NodeTransformer):
    """Transformer that records every assertion in a set.

    A handler counts as an assertion if its `try` contains one (`try: f(-1); assert False` and `except ValueError:
    pass`), and so does a `with` that may suppress the exception that a test expects.
    """

    def __init__(self, remote: Set[str]) -> None:
        self._remote = remote

    def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:
        return node if node.name in FIXTURES else self.generic_visit(node)

    def visit_Assert(self, node: ast.Assert) -> Any:
        return [*_statements(f"{REACHED}.add(0)"), node]

    def visit_Expr(self, node: ast.Expr) -> Any:
        call = node.value
        is_call = isinstance(call, ast.Call) and is_assertion(call)
        if not is_call or names_in(call.func) & self._remote:  # type: ignore[attr-defined]
            return node
        return [*_statements(f"{REACHED}.add(0)"), node]

    def visit_Assign(self, node: ast.Assign) -> Any:
        return [*_statements(f"{REACHED}.add(0)"), node] if is_assertion(node.value) else node

    def visit_Try(self, node: ast.Try) -> Any:
        if any(map(is_assertion, walk_all([*node.body, *node.orelse]))):
            for handler in node.handlers:
                handler.body[:0] = _statements(f"{REACHED}.add(0)")
        self.generic_visit(node)
        return node

    def visit_With(self, node: ast.With) -> Any:
        body = any(is_assertion(part.value if isinstance(part, ast.Expr) else part) for part in node.body)
        asserts = body or any(is_assertion(item.context_expr) for item in node.items)
        self.generic_visit(node)
        return [*_statements(f"{REACHED}.add(0)"), node] if asserts else node


_REWRITTEN = ("assertIs", "assertIsNot", "assertIsInstance", "assertNotIsInstance", "assertIn", "assertNotIn")
"""Methods of `unittest.TestCase` that decide about identity, type or membership, in C."""


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
            made = self._asks_program(test)
            call = call_of(COMPARE, OPERATORS[type(test.ops[0])], self.visit(left), self.visit(right), swapped, made)
        elif isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            call = call_of(TRUTH, self.visit(test.operand), False)
        else:
            call = call_of(TRUTH, self.visit(test), True)
        return ast.Assert(call, self.visit(node.msg) if node.msg is not None else None)

    def visit_Compare(self, node: ast.Compare) -> Any:
        membership = self._asks_program(node)
        self.generic_visit(node)
        if membership:
            return call_of(OPERATE, OPERATORS[type(node.ops[0])], node.left, *node.comparators)
        if len(node.ops) != 1 or not isinstance(node.ops[0], ast.Is | ast.IsNot):
            return node
        same = call_of(SAME, node.left, node.comparators[0])
        return same if isinstance(node.ops[0], ast.Is) else ast.UnaryOp(ast.Not(), same)

    def _asks_program(self, node: ast.Compare) -> bool:
        """Return whether this is `x in v`, `v in x`, `v == x` or `v != x` for an instance `v` that the test makes."""
        if len(node.ops) != 1:
            return False
        left, right = node.left, node.comparators[0]
        if isinstance(node.ops[0], ast.Eq | ast.NotEq):
            return self._instances.is_instance(left) is not self._instances.is_instance(right)
        is_operand = self._instances.is_instance(right) or self._instances.is_instance(left)
        return isinstance(node.ops[0], ast.In | ast.NotIn) and is_operand

    def visit_BinOp(self, node: ast.BinOp) -> Any:
        made = self._instances.is_instance(node)
        self.generic_visit(node)
        return call_of(OPERATE, ARITHMETIC[type(node.op)], node.left, node.right) if made else node

    def visit_AugAssign(self, node: ast.AugAssign) -> Any:
        made = self._instances.is_instance(node.target) or self._instances.is_instance(node.value)
        self.generic_visit(node)
        if not made or not isinstance(node.target, ast.Name):
            return node
        name, old = f"i{ARITHMETIC[type(node.op)].rstrip('_')}", ast.Name(node.target.id, ast.Load())
        return ast.Assign([node.target], call_of(OPERATE, name, old, node.value))

    def visit_Call(self, node: ast.Call) -> Any:
        is_sum = self._instances.is_sum(node)
        is_operator = len(node.args) > 1 and self._instances.is_instance(node.args[1])
        self.generic_visit(node)
        name = last_name(node.func) if _is_self(getattr(node.func, "value", None)) else ""
        if name in _REWRITTEN and len(node.args) > 1 and (is_operator or not name.endswith("In")):
            kind = name.removeprefix("assert").removeprefix("Not").removesuffix("Not")
            function = {"Is": SAME, "In": OPERATE, "IsInstance": "isinstance"}[kind]
            value = call_of(function, *(["in"] if kind == "In" else []), *node.args[:2])
            method = ast.Attribute(
                ast.Name("self", ast.Load()), "assertFalse" if "Not" in name else "assertTrue", ast.Load()
            )
            return ast.Call(method, [value, *node.args[2:]], node.keywords)
        if is_sum:
            return call_of(OPERATE, "sum", node.args[0], node.args[1] if len(node.args) > 1 else 0)
        return node


def _is_self(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


def call_of(function: str, *arguments: ast.expr | str | int) -> ast.Call:
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
        if isinstance(node, ast.Attribute) and _is_self(node.value):
            return f"self.{node.attr}" in self._variables
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
