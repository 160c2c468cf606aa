"""Rewriting of tests where the program is asked more, or more at once, than the expression itself asks.

- Operators for which a test expects a TypeError become `OPERATE("add", v, 3)`, which may ask the program.
- A call of a helper of the program that decides about the program's own result (`assert allclose(f(x), y)`) becomes
  `ASKED(call)`, so that the verdict is not trusted (see `helper_calls`).
- Items that a comprehension or a function like `sum` consumes to the end are fetched in blocks: `ALL(f(n))`.
"""

from __future__ import annotations

import ast
import itertools
from typing import Any

from .helper_calls import HelperCalls
from .instrumentation import ARITHMETIC, OPERATORS, call_of
from .statements import last_name, name_of, names_in
from .suite import ALL, ASKED, OPERATE
from .trust_analysis import TrustAnalysis, is_assertion

_CONSUMERS = {"list", "tuple", "set", "frozenset", "sorted", "sum", "min", "max", "bytes", "deque"}
_CONSUMING_METHODS = {"join", "extend", "fsum", "prod", "mean", "fmean", "median"}
_RAISES = {"raises", "assertRaises", "assertRaisesRegex"}
_CATCHING = {"TypeError", "Exception"}


class RequestRewriter(ast.NodeTransformer):
    """Transformer of a test's statements, whose new nodes have no location. `remote` are the program's names."""

    def __init__(self, analysis: TrustAnalysis, remote: frozenset[str], helpers: HelperCalls) -> None:
        self._analysis = analysis
        self._remote = remote
        self._helpers = helpers
        self._expects_type_error = False
        self._compared: set[ast.AST] = set()
        """Calls of helpers whose whole results the judge compares with data, see `HelperCalls.is_compared`."""

    # --- expected TypeErrors ---

    def visit_Try(self, node: ast.Try) -> Any:
        caught = [handler.type or ast.Name("Exception", ast.Load()) for handler in node.handlers]
        node.body = self._visit_expecting(node.body, not _CATCHING.isdisjoint(names_in(*caught)))
        for statement in (*node.handlers, *node.orelse, *node.finalbody):
            self.visit(statement)
        return node

    def visit_With(self, node: ast.With) -> Any:
        caught: list[ast.expr] = []
        for item in node.items:
            context = item.context_expr
            if isinstance(context, ast.Call) and last_name(context.func) in _RAISES:
                caught += context.args[:1]
        node.items = [self.visit(item) for item in node.items]
        node.body = self._visit_expecting(node.body, not _CATCHING.isdisjoint(names_in(*caught)))
        return node

    def _visit_expecting(self, body: list[ast.stmt], expects_type_error: bool) -> list[ast.stmt]:
        outside = self._expects_type_error
        self._expects_type_error = expects_type_error or outside
        visited = [self.visit(statement) for statement in body]
        self._expects_type_error = outside
        return visited

    def visit_BinOp(self, node: ast.BinOp) -> Any:
        is_decided = self._helpers.decides(node)
        self.generic_visit(node)
        if is_decided:
            node.left = call_of(ASKED, node.left)
        if not self._expects_type_error or not self._analysis.from_program(node):
            return node
        return call_of(OPERATE, ARITHMETIC[type(node.op)], node.left, node.right)

    def visit_Compare(self, node: ast.Compare) -> Any:
        is_decided = any(self._helpers.compares(node.left, side) for side in node.comparators)
        operator = node.ops[0]
        is_single = len(node.ops) == 1
        if is_single and isinstance(operator, ast.Eq):
            self._note_compared(node.left, node.comparators[0])
        self.generic_visit(node)
        if is_decided:
            node.left = call_of(ASKED, node.left)
        is_ordered = is_single and isinstance(operator, ast.Lt | ast.LtE | ast.Gt | ast.GtE)
        if not is_ordered or not self._expects_type_error or not self._analysis.from_program(node):
            return node
        return call_of(OPERATE, OPERATORS[type(operator)], node.left, *node.comparators)

    # --- decisions of the program ---

    def visit_List(self, node: ast.List) -> Any:
        return self._visit_display(node)

    def visit_Tuple(self, node: ast.Tuple) -> Any:
        return self._visit_display(node)

    def visit_Set(self, node: ast.Set) -> Any:
        return self._visit_display(node)

    def visit_Dict(self, node: ast.Dict) -> Any:
        return self._visit_display(node)

    def visit_IfExp(self, node: ast.IfExp) -> Any:
        return self._visit_display(node)

    def visit_Subscript(self, node: ast.Subscript) -> Any:
        return self._visit_display(node)

    def _visit_display(self, node: Any) -> Any:
        # A list or subscript on the left of `=` is no value.
        is_value = isinstance(getattr(node, "ctx", ast.Load()), ast.Load)
        is_decided = is_value and self._helpers.decides(node)
        self.generic_visit(node)
        return call_of(ASKED, node) if is_decided else node

    # --- items in blocks ---

    def visit_Call(self, node: ast.Call) -> Any:
        is_decided = node not in self._compared and self._helpers.decides(node)
        if last_name(node.func) == "assertEqual" and len(node.args) > 1:
            self._note_compared(*node.args[:2])
        pairs = itertools.combinations(node.args, 2)
        compares = is_assertion(node) and any(itertools.starmap(self._helpers.compares, pairs))
        self.generic_visit(node)
        if compares:
            node.args[0] = call_of(ASKED, node.args[0])
        node = self._with_blocks(node)
        return call_of(ASKED, node) if is_decided else node

    def _note_compared(self, left: ast.expr, right: ast.expr) -> None:
        for call, expected in ((left, right), (right, left)):
            if self._helpers.is_compared(call, expected):
                self._compared.add(call)

    def _with_blocks(self, node: ast.Call) -> ast.Call:
        """Return the call with `ALL` around items of the program that it consumes to the end."""
        function = node.func
        if isinstance(function, ast.Attribute):
            consumes = function.attr in _CONSUMING_METHODS and not self._analysis.from_program(function)
        else:
            consumes = name_of(function) in _CONSUMERS
        if not consumes or len(node.args) != 1:
            return node
        items = node.args[0]
        if isinstance(items, ast.GeneratorExp):
            self._fetch_blocks(items)
            return node
        # A display such as `[f(1), f(2)]` has its items already.
        is_fetched = isinstance(items, ast.Call | ast.Name | ast.Attribute | ast.Subscript)
        if is_fetched and self._analysis.from_program(items):
            node.args = [call_of(ALL, items)]
        return node

    def visit_ListComp(self, node: ast.ListComp) -> Any:
        return self._fetch_blocks(self.generic_visit(node))

    def visit_SetComp(self, node: ast.SetComp) -> Any:
        return self._fetch_blocks(self.generic_visit(node))

    def visit_DictComp(self, node: ast.DictComp) -> Any:
        return self._fetch_blocks(self.generic_visit(node))

    def _fetch_blocks(self, node: Any) -> Any:
        """Fetch the items of a comprehension in blocks, unless its expressions ask the program in between."""
        first = node.generators[0]
        expressions = [*first.ifs, *node.generators[1:]]
        if isinstance(node, ast.DictComp):
            expressions += [node.key, node.value]
        else:
            expressions.append(node.elt)
        asks_in_between = names_in(*expressions) & self._remote
        if self._analysis.from_program(first.iter) and not asks_in_between and not first.is_async:
            first.iter = call_of(ALL, first.iter, True)
        return node
