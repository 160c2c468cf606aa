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

from .statements import imported_name, last_name, name_of, names_in, of_kind, syntax_tree, walk_all
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
    ending = "raise RuntimeError('no assertion was reached')"
    for loop in of_kind(ast.For, walk_all(block)):
        if analysis is not None and analysis.from_program(loop.iter):
            ending = f"{ASKED}(0)"
    return [*statements, *syntax_tree(f"if not {REACHED}: {ending}").body]


def _reached(*nodes: ast.stmt) -> list[ast.stmt]:
    """Return the statement that records an assertion, and some nodes."""
    return [*syntax_tree(f"{REACHED}.add(0)").body, *nodes]


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
        return _reached(node)

    def visit_Expr(self, node: ast.Expr) -> Any:
        call = node.value
        if not isinstance(call, ast.Call) or not is_assertion(call):
            return node
        # A function `assert_close` of the program does not decide that a test has asserted.
        if names_in(call.func) & self._remote:
            return node
        return _reached(node)

    def visit_Assign(self, node: ast.Assign) -> Any:
        return _reached(node) if is_assertion(node.value) else node

    def visit_Try(self, node: ast.Try) -> Any:
        if any(map(is_assertion, walk_all([*node.body, *node.orelse]))):
            for handler in node.handlers:
                handler.body[:0] = _reached()
        self.generic_visit(node)
        return node

    def visit_With(self, node: ast.With) -> Any:
        parts: list[ast.AST] = [item.context_expr for item in node.items]
        for statement in node.body:
            parts.append(statement.value if isinstance(statement, ast.Expr) else statement)
        asserts = any(map(is_assertion, parts))
        self.generic_visit(node)
        return _reached(node) if asserts else node


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
            left = test.left
            right = test.comparators[0]
            swapped = self._analysis.from_program(right) and not self._analysis.from_program(left)
            made = self._asks_program(test)
            call = call_of(COMPARE, OPERATORS[type(test.ops[0])], self.visit(left), self.visit(right), swapped, made)
        elif isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            call = call_of(TRUTH, self.visit(test.operand), False)
        else:
            call = call_of(TRUTH, self.visit(test), True)
        message = node.msg
        if message is not None:
            message = self.visit(message)
        return ast.Assert(call, message)

    def visit_Compare(self, node: ast.Compare) -> Any:
        membership = self._asks_program(node)
        self.generic_visit(node)
        if membership:
            return call_of(OPERATE, OPERATORS[type(node.ops[0])], node.left, *node.comparators)
        if len(node.ops) != 1 or not isinstance(node.ops[0], ast.Is | ast.IsNot):
            return node
        same = call_of(SAME, node.left, node.comparators[0])
        if isinstance(node.ops[0], ast.IsNot):
            return ast.UnaryOp(ast.Not(), same)
        return same

    def _asks_program(self, node: ast.Compare) -> bool:
        """Return whether this is `x in v`, `v in x`, `v == x` or `v != x` for an instance `v` that the test makes."""
        if len(node.ops) != 1:
            return False
        made_left = self._instances.is_instance(node.left)
        made_right = self._instances.is_instance(node.comparators[0])
        if isinstance(node.ops[0], ast.Eq | ast.NotEq):
            return made_left is not made_right
        return isinstance(node.ops[0], ast.In | ast.NotIn) and (made_left or made_right)

    def visit_BinOp(self, node: ast.BinOp) -> Any:
        made = self._instances.is_instance(node)
        self.generic_visit(node)
        if not made:
            return node
        return call_of(OPERATE, ARITHMETIC[type(node.op)], node.left, node.right)

    def visit_AugAssign(self, node: ast.AugAssign) -> Any:
        made = self._instances.is_instance(node.target) or self._instances.is_instance(node.value)
        self.generic_visit(node)
        if not made or not isinstance(node.target, ast.Name):
            return node
        name = ARITHMETIC[type(node.op)].rstrip("_")
        value = call_of(OPERATE, f"i{name}", _load(node.target.id), node.value)
        return ast.Assign([node.target], value)

    def visit_Call(self, node: ast.Call) -> Any:
        is_sum = self._instances.is_sum(node)
        is_operator = len(node.args) > 1 and self._instances.is_instance(node.args[1])
        self.generic_visit(node)
        name = ""
        if name_of(getattr(node.func, "value", None)) == "self":
            name = last_name(node.func)
        if name in _REWRITTEN and len(node.args) > 1 and (is_operator or not name.endswith("In")):
            pair = node.args[:2]
            if name.endswith("Instance"):
                value = call_of("isinstance", *pair)
            elif name.endswith("In"):
                value = call_of(OPERATE, "in", *pair)
            else:
                value = call_of(SAME, *pair)
            truth = "assertFalse" if "Not" in name else "assertTrue"
            method = ast.Attribute(_load("self"), truth, ast.Load())
            return ast.Call(method, [value, *node.args[2:]], node.keywords)
        if is_sum:
            start = node.args[1:] or [ast.Constant(0)]
            return call_of(OPERATE, "sum", node.args[0], *start)
        return node


def _load(name: str) -> ast.Name:
    return ast.Name(name, ast.Load())


def call_of(function: str, *arguments: ast.expr | str | int) -> ast.Call:
    nodes = []
    for argument in arguments:
        nodes.append(argument if isinstance(argument, ast.expr) else ast.Constant(argument))
    return ast.Call(_load(function), nodes, [])


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
        while True:  # for aliases of classes, and aliases of these
            aliases = {name for name, values in bindings.items() if all(map(self._is_class, values))}
            if aliases <= self._classes:
                break
            self._classes |= aliases
        self._variables = set(bindings)
        self._sum_is_builtin = "sum" not in bindings
        while True:  # for variables that are bound to variables that have turned out to be no instances
            others = {name for name in self._variables if not all(map(self.is_instance, bindings[name]))}
            if not others:
                break
            self._variables -= others

    def is_instance(self, node: ast.AST | None) -> bool:
        """Return whether an expression is such an instance."""
        if isinstance(node, ast.Name):
            return node.id in self._variables
        if isinstance(node, ast.Attribute) and name_of(node.value) == "self":
            return f"self.{node.attr}" in self._variables
        if isinstance(node, ast.BinOp):
            return self.is_instance(node.left) or self.is_instance(node.right)
        return isinstance(node, ast.Call) and self._is_class(node.func)

    def is_sum(self, node: ast.Call) -> bool:
        """Return whether this is `sum([Money(1), Money(2)])`, which applies operators too."""
        if name_of(node.func) != "sum" or not self._sum_is_builtin:
            return False
        if len(node.args) not in (1, 2) or node.keywords:
            return False
        items = node.args[0]
        if isinstance(items, ast.ListComp | ast.GeneratorExp):
            return self.is_instance(items.elt)
        return isinstance(items, ast.List | ast.Tuple) and all(map(self.is_instance, items.elts))

    def _is_class(self, node: ast.AST | None) -> bool:
        return name_of(node) in self._classes


def _bindings(part: ast.AST) -> Iterator[tuple[str, ast.AST | None]]:
    """Yield the names that a node itself binds, without its child nodes, and the expression (or None) of each.

    `v += 1` is no binding: `v` is its operand.
    """
    if isinstance(part, ast.Assign):
        for target in part.targets:
            yield from _assigned(target, part.value)
    elif isinstance(part, ast.AnnAssign):
        if part.value is not None:
            yield from _assigned(part.target, part.value)
    elif isinstance(part, ast.For | ast.comprehension):
        if isinstance(part.iter, ast.List | ast.Tuple):
            for item in part.iter.elts:
                yield from _assigned(part.target, item)
        else:
            yield from _assigned(part.target, None)
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
        values: Sequence[ast.AST | None] = [None] * len(target.elts)
        if isinstance(value, ast.Tuple | ast.List) and len(value.elts) == len(target.elts):
            values = value.elts
        for inner, item in zip(target.elts, values, strict=True):
            yield from _assigned(inner, item)
    elif isinstance(target, ast.Starred):
        yield from _assigned(target.value, None)
