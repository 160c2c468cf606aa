"""Analysis of where helpers of the program decide about the program's own result.

A program defines more than the function under test. In `assert close(f(1), 2)` the program's own `close` decides,
and so it does in `ok = close(f(1), 2)`, `all(map(close, ...))` or `Checker().ok(f(1))`. Every call of such a helper
with a value that derives from the function under test makes the verdict untrusted, wherever it stands: the mark follows
the value. Only a helper that converts the value, and is not told the expected result, keeps the trust.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from .statements import walk_all

_OWN = ("self", "cls")
ValueBinding = tuple[set[str], ast.AST]
"""Names, and the expression whose value they may have."""


class HelperCalls:
    """Analysis of the statements of a problem's tests.

    `remote` are the names that the program defines. A call of `entry_point` is no helper's: its result is under test.
    """

    def __init__(self, statements: Sequence[ast.AST], remote: frozenset[str], entry_point: str) -> None:
        values = list(_value_bindings(statements))
        functions = list(_definitions(statements))
        results = list(_changed_arguments(statements, entry_point))
        self._derived = _spread({entry_point}, [*values, *functions, *results])
        """Names of values that derive from the function under test, and of functions of the tests that use it."""
        self._under_test = _spread({entry_point}, [(names, source) for names, source in values if _is_alias(source)])
        """Names of the function under test."""
        made = [(names, source) for names, source in values if not self._is_result(source)]
        self._helpers = _spread(remote - {entry_point}, made)
        """Names of helpers, of their instances, and of values that helpers have made."""
        self._functions = _spread(remote - {entry_point}, [each for each in values if _is_alias(each[1])])
        """Names of helpers alone."""

    def decides(self, node: ast.AST) -> bool:
        """Return whether a helper receives a derived value in this call or subscript."""
        if isinstance(node, ast.Subscript):
            return self._is_helper(node.value) and self._is_derived(node.slice)
        if not isinstance(node, ast.Call) or self._is_result(node):
            return False
        arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
        if not any(map(self._is_derived, arguments)):
            return False
        return self._is_helper(node.func) or any(map(self._passes_helper, arguments))

    def is_compared(self, call: ast.AST, expected: ast.AST) -> bool:
        """Return whether a call of a helper only converts a derived value, whose result the judge compares with data:
        `to_list(f(x)) == [3, 2, 1]`. A helper that is not told the expected value cannot decide about it.

        Data are lists and the like with an item other than 0, 1, True, False, None and empty ones, which are the words
        of a verdict.
        """
        if (
            not isinstance(call, ast.Call)
            or len(call.args) != 1
            or call.keywords
            or not isinstance(call.func, ast.Name)
        ):
            return False
        if not isinstance(expected, ast.List | ast.Tuple | ast.Set | ast.Dict):
            return False
        items = [part.value for part in ast.walk(expected) if isinstance(part, ast.Constant)]
        return any(item not in (0, 1, None, "", b"") and not isinstance(item, str) for item in items)

    def compares(self, left: ast.AST, right: ast.AST) -> bool:
        """Return whether a derived value is compared with a value of a helper."""
        sides = ((left, right), (right, left))
        return any(self._is_derived(result) and self._is_only_helper(expected) for result, expected in sides)

    def _is_result(self, node: ast.AST) -> bool:
        """Return whether this is a call of the function under test, or of a method of its class or instance."""
        return isinstance(node, ast.Call) and bool(value_names(node.func) & self._under_test)

    def _is_helper(self, node: ast.AST) -> bool:
        return bool(value_names(node) & self._helpers)

    def _is_derived(self, node: ast.AST) -> bool:
        return bool(value_names(node) & self._derived)

    def _is_only_helper(self, node: ast.AST) -> bool:
        return self._is_helper(node) and not self._is_derived(node)

    def _passes_helper(self, argument: ast.AST) -> bool:
        """Return whether a helper itself is in an argument, as in `map(close, ...)`, and not only its result."""
        called = {id(_root(part.func)) for part in ast.walk(argument) if isinstance(part, ast.Call)}
        return any(
            isinstance(part, ast.Name) and part.id in self._functions and id(part) not in called
            for part in ast.walk(argument)
        )


def _root(function: ast.AST) -> ast.AST:
    """Return the node of `a` in `a.b.c`."""
    while isinstance(function, ast.Attribute):
        function = function.value
    return function


def _is_alias(source: ast.AST) -> bool:
    """Return whether an expression only names or collects values, without a call."""
    return not any(isinstance(part, ast.Call) for part in ast.walk(source))


def value_names(node: ast.AST) -> set[str]:
    """Return the names in an expression. The attribute `self.x` counts as the name "self.x"."""
    names: set[str] = set()
    todo = [node]
    while todo:
        part = todo.pop()
        if isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name) and part.value.id in _OWN:
            names.add(f"self.{part.attr}")
        elif isinstance(part, ast.Name):
            names.add(part.id)
        else:
            todo += ast.iter_child_nodes(part)
    return names


def _spread(first: set[str] | frozenset[str], bindings: Sequence[ValueBinding]) -> frozenset[str]:
    """Return some names, and the names that are bound to expressions with such names."""
    reached = set(first)
    changed = True
    while changed:
        changed = False
        for names, source in bindings:
            if not names <= reached and value_names(source) & reached:
                reached |= names
                changed = True
    return frozenset(reached)


def _value_bindings(statements: Sequence[ast.AST]) -> Iterator[ValueBinding]:
    """Yield what assignments, loops, `with` and calls of the tests' own functions bind."""
    parameters = {}
    for part in walk_all(statements):
        if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef):
            parameters[part.name] = {item.arg for item in ast.walk(part.args) if isinstance(item, ast.arg)}
    for part in walk_all(statements):
        if isinstance(part, ast.Call):
            called = value_names(part.func) & parameters.keys()
            for argument in (*part.args, *(keyword.value for keyword in part.keywords)):
                for name in called:
                    yield parameters[name], argument
            if isinstance(part.func, ast.Lambda):
                names = {item.arg for item in ast.walk(part.func.args) if isinstance(item, ast.arg)}
                for argument in part.args:
                    yield names, argument
            if isinstance(part.func, ast.Attribute) and part.args:  # `results.append(f(1))`
                for argument in part.args:
                    yield value_names(part.func.value) - set(_OWN), argument
        elif isinstance(part, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.NamedExpr) and part.value is not None:
            targets = part.targets if isinstance(part, ast.Assign) else [part.target]
            for target in targets:
                yield value_names(target), part.value
        elif isinstance(part, ast.For | ast.AsyncFor | ast.comprehension):
            yield value_names(part.target), part.iter
        elif isinstance(part, ast.withitem) and part.optional_vars is not None:
            yield value_names(part.optional_vars), part.context_expr
        elif isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            for default in (*part.args.defaults, *filter(None, part.args.kw_defaults)):
                yield {item.arg for item in ast.walk(part.args) if isinstance(item, ast.arg)}, default


def _definitions(statements: Sequence[ast.AST]) -> Iterator[ValueBinding]:
    """Yield the tests' functions and classes with their bodies, whose results may derive from every name in them."""
    for part in walk_all(statements):
        if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield {part.name}, part


def _changed_arguments(statements: Sequence[ast.AST], entry_point: str) -> Iterator[ValueBinding]:
    """Yield the arguments of calls whose results are not used, because the function under test may change them."""
    for part in walk_all(statements):
        if isinstance(part, ast.Expr) and isinstance(part.value, ast.Call):
            call = part.value
            if isinstance(call.func, ast.Name):
                yield set().union(*map(value_names, call.args)), call.func
