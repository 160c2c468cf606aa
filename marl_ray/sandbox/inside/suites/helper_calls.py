"""Analysis of where helpers of the program decide about the program's own result.

A program defines more than the function under test. In `assert close(f(1), 2)` the program's own `close` decides,
and so it does in `ok = close(f(1), 2)`, `all(map(close, ...))` or `Checker().ok(f(1))`. Every call of such a helper
with a value that derives from the function under test makes the verdict untrusted, wherever it stands: the mark follows
the value. Only a helper that converts the value, and is not told the expected result, keeps the trust.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Sequence, Set

from .statements import (
    FUNCTIONS,
    SCOPES,
    arguments_of,
    defaults_of,
    name_of,
    of_kind,
    spread,
    targets_of,
    walk_all,
)

_OWN = ("self", "cls")
ValueBinding = tuple[set[str], ast.AST]
"""Names, and the expression whose value they may have."""


class HelperCalls:
    """Analysis of the statements of a problem's tests.

    `remote` are the names that the program defines. A call of `entry_point` is no helper's: its result is under test.
    """

    def __init__(self, statements: Sequence[ast.AST], remote: frozenset[str], entry_point: str) -> None:
        self._is_class = entry_point[:1].isupper()
        self._assigned = set()
        """Attributes that the tests set, which are no methods of the class under test."""
        for part in of_kind(ast.Attribute, walk_all(statements)):
            if isinstance(part.ctx, ast.Store):
                self._assigned.add(part.attr)
        values = list(_value_bindings(statements))
        # `g = f` is another name of the function, and `s = Stack()` an instance whose methods are under test.
        aliases = []
        instances = []
        for binding in values:
            _, source = binding
            if not any(of_kind(ast.Call, ast.walk(source))):
                aliases.append(binding)
            elif self._is_class and isinstance(source, ast.Call) and name_of(source.func) == entry_point:
                instances.append(binding)
        self._under_test = _spread({entry_point}, [*aliases, *instances])
        """Names of the function under test, and of instances of the class under test."""
        # A name with both kinds of bindings counts as a helper's value: which of them holds, only a run tells.
        made = []
        results_alone: set[str] = set()
        for names, source in values:
            if self._is_result(source):
                results_alone |= names
            else:
                made.append((names, source))
        helpers = remote - {entry_point}
        self._helpers = _spread(helpers, made)
        """Names of helpers, of their instances, and of values that helpers have made."""
        changed = _changed_arguments(statements, self._helpers)
        unknown = _unknown_parameters(statements)
        self._derived = _spread({entry_point, *unknown}, [*values, *_definitions(statements), *changed])
        """Names of values that derive from the function under test, and of functions of the tests that use it."""
        self._functions = _spread(helpers, aliases)
        """Names of helpers alone."""
        self._results = results_alone.difference(unknown, *(names for names, _ in made))
        """Names that are bound to results of the function under test, and to nothing else."""

    def decides(self, node: ast.AST) -> bool:
        """Return whether a helper receives a derived value in this expression, or the two are brought together."""
        if isinstance(node, ast.Subscript):
            return self._meet([node.value, node.slice])
        if isinstance(node, ast.BinOp):
            return self._meet([node.left, node.right])
        if isinstance(node, ast.List | ast.Tuple | ast.Set):
            return self._meet(node.elts)
        if isinstance(node, ast.Dict):
            return self._meet([*filter(None, node.keys), *node.values])
        if isinstance(node, ast.IfExp):
            return self._meet([node.body, node.orelse])
        if not isinstance(node, ast.Call) or self._is_result(node):
            return False
        arguments = arguments_of(node)
        values = arguments
        if isinstance(node.func, ast.Attribute):
            values = [*arguments, node.func.value]
        if not any(map(self._is_derived, values)):
            return False
        if self._is_helper(node.func) or self._meet(values):
            return True
        # In `map(close, f(1))` the called function is none of the program's: an argument is.
        return any(map(self._is_derived, arguments)) and any(map(self._passes_helper, arguments))

    def _meet(self, values: Sequence[ast.AST]) -> bool:
        """Return whether one of some values is derived, and another one is a helper's."""
        return any(map(self._is_derived, values)) and any(map(self._is_only_helper, values))

    def is_compared(self, call: ast.AST, expected: ast.AST) -> bool:
        """Return whether a call of a helper only converts a derived value, whose result the judge compares with data:
        `to_list(f(x)) == [3, 2, 1]`. A helper that is not told the expected value cannot decide about it, so that its
        argument is a result alone, and not a list of the result and other values.

        Data are lists and the like with an item other than 0, 1, True, False, None and empty ones, which are the words
        of a verdict.
        """
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
            return False
        if len(call.args) != 1 or call.keywords:
            return False
        argument = call.args[0]
        is_name = isinstance(argument, ast.Name | ast.Attribute) and value_names(argument) <= self._results
        if not is_name and not self._is_result(argument):
            return False
        if not isinstance(expected, ast.List | ast.Tuple | ast.Set | ast.Dict):
            return False
        for part in of_kind(ast.Constant, ast.walk(expected)):
            if part.value not in (0, 1, None, b"") and not isinstance(part.value, str):
                return True
        return False

    def compares(self, left: ast.AST, right: ast.AST) -> bool:
        """Return whether a derived value is compared with a value of a helper."""
        # A value that is only a helper's is not derived, so the other one is.
        return self._meet([left, right])

    def _is_result(self, node: ast.AST) -> bool:
        """Return whether this is a call of the function under test, or of a method of the class under test."""
        if not isinstance(node, ast.Call):
            return False
        if isinstance(node.func, ast.Attribute) and (not self._is_class or node.func.attr in self._assigned):
            return False
        return bool(value_names(node.func) & self._under_test)

    def _is_helper(self, node: ast.AST) -> bool:
        return bool(value_names(node) & self._helpers)

    def _is_derived(self, node: ast.AST) -> bool:
        return bool(value_names(node) & self._derived)

    def _is_only_helper(self, node: ast.AST) -> bool:
        return self._is_helper(node) and not self._is_derived(node)

    def _passes_helper(self, argument: ast.AST) -> bool:
        """Return whether a helper itself is in an argument, as in `map(close, ...)`, and not only its result."""
        called = {_root(part.func) for part in of_kind(ast.Call, ast.walk(argument))}
        helpers = [part for part in of_kind(ast.Name, ast.walk(argument)) if part.id in self._functions]
        return not called.issuperset(helpers)


def _root(function: ast.AST) -> ast.AST:
    """Return the node of `a` in `a.b.c`."""
    while isinstance(function, ast.Attribute):
        function = function.value
    return function


def value_names(node: ast.AST) -> set[str]:
    """Return the names in an expression. The attribute `self.x` counts as the name "self.x"."""
    names: set[str] = set()
    todo = [node]
    while todo:
        part = todo.pop()
        if isinstance(part, ast.Attribute) and name_of(part.value) in _OWN:
            names.add(f"self.{part.attr}")
        elif isinstance(part, ast.Name):
            names.add(part.id)
        else:
            todo += ast.iter_child_nodes(part)
    return names


def _spread(first: Set[str], bindings: Sequence[ValueBinding]) -> frozenset[str]:
    """Return some names, and the names that are bound to expressions with such names."""
    return spread(first, [(names, value_names(source)) for names, source in bindings])


def _value_bindings(statements: Sequence[ast.AST]) -> Iterator[ValueBinding]:
    """Yield what assignments, loops, `with` and calls of the tests' own functions bind."""
    parameters = _parameters(statements)
    for part in walk_all(statements):
        if isinstance(part, ast.Call):
            arguments = arguments_of(part)
            for name in _called_names(part.func) & parameters.keys():
                for argument in arguments:
                    yield parameters[name], argument
            if isinstance(part.func, ast.Lambda):
                for argument in arguments:
                    yield _argument_names(part.func), argument
            yield from _changed_by_call(part, arguments)
        elif isinstance(part, ast.Try):
            for handler in part.handlers:
                if handler.name:  # the exception may carry a value
                    for statement in part.body:
                        yield {handler.name}, statement
        elif isinstance(part, ast.Match):
            captured = set()
            for inner in ast.walk(part):
                if isinstance(inner, ast.MatchAs | ast.MatchStar) and inner.name:
                    captured.add(inner.name)
            yield captured, part.subject
        elif isinstance(part, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.NamedExpr) and part.value is not None:
            for target in targets_of(part):
                yield value_names(target), part.value
        elif isinstance(part, ast.For | ast.AsyncFor | ast.comprehension):
            yield value_names(part.target), part.iter
        elif isinstance(part, ast.withitem) and part.optional_vars is not None:
            yield value_names(part.optional_vars), part.context_expr
        elif isinstance(part, (*FUNCTIONS, ast.Lambda)):
            for default in defaults_of(part):
                yield _argument_names(part), default


def _changed_by_call(call: ast.Call, arguments: Sequence[ast.AST]) -> Iterator[ValueBinding]:
    """Yield the variables that a call may put another argument into: `results.append(f(1))`, `heappush(heap, f(1))`."""
    passed = list(arguments)
    if isinstance(call.func, ast.Attribute):
        passed.append(call.func.value)
    for changed in passed:
        if isinstance(changed, ast.Name | ast.Attribute | ast.Subscript):
            for other in arguments:
                if other is not changed:
                    yield value_names(changed).difference(_OWN), other


def _parameters(statements: Sequence[ast.AST]) -> dict[str, set[str]]:
    """Return the parameters of the tests' functions and methods by name, and of `__init__` by its class."""
    parameters: defaultdict[str, set[str]] = defaultdict(set)
    for part in walk_all(statements):
        if isinstance(part, FUNCTIONS):
            parameters[part.name] |= _argument_names(part)
        elif isinstance(part, ast.Assign) and isinstance(part.value, ast.Lambda):
            for name in _target_names(part):
                parameters[name] |= _argument_names(part.value)
        elif isinstance(part, ast.ClassDef):
            for item in of_kind(ast.FunctionDef, part.body):
                if item.name == "__init__":
                    parameters[part.name] |= _argument_names(item)
    return parameters


def _target_names(assignment: ast.Assign) -> set[str]:
    return set().union(*map(value_names, assignment.targets))


def _argument_names(function: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> set[str]:
    arguments = {item.arg for item in of_kind(ast.arg, ast.walk(function.args))}
    return arguments.difference(_OWN)


def _called_names(function: ast.AST) -> set[str]:
    """Return the names in a called expression, and the name of the method."""
    names = value_names(function)
    if isinstance(function, ast.Attribute):
        names.add(function.attr)
    return names


def _unknown_parameters(statements: Sequence[ast.AST]) -> set[str]:
    """Return the parameters of functions that something else than a call by name may call: special methods, lambdas
    that have no name, and functions that are passed on, as in `map(check, f(1))`."""
    parts = list(walk_all(statements))
    called = {part.func for part in of_kind(ast.Call, parts)}
    named = {part.value for part in of_kind(ast.Assign, parts) if len(part.targets) == 1}
    passed = set()
    loaded = set()
    for name in of_kind(ast.Name, parts):
        if name not in called:
            passed.add(name.id)
            if isinstance(name.ctx, ast.Load):
                loaded.add(name.id)
    unknown: set[str] = set()
    for part in parts:
        if isinstance(part, ast.Lambda) and part not in named and part not in called:
            unknown |= _argument_names(part)
        elif isinstance(part, FUNCTIONS):
            is_special = part.name.startswith("__") and part.name != "__init__"
            if is_special or part.name in passed or part.decorator_list:
                unknown |= _argument_names(part)
        elif isinstance(part, ast.Assign) and isinstance(part.value, ast.Lambda) and loaded & _target_names(part):
            unknown |= _argument_names(part.value)  # something else than a call uses the lambda
    return unknown


def _definitions(statements: Sequence[ast.AST]) -> Iterator[ValueBinding]:
    """Yield the tests' functions and classes with their bodies, whose results may derive from every name in them."""
    for part in walk_all(statements):
        if isinstance(part, SCOPES):
            yield {part.name}, part


def _changed_arguments(statements: Sequence[ast.AST], helpers: frozenset[str]) -> Iterator[ValueBinding]:
    """Yield the arguments of calls, because the function under test may change them; of calls whose results are used,
    without values that helpers have made."""
    parts = list(walk_all(statements))
    alone = {part.value for part in of_kind(ast.Expr, parts)}
    for call in of_kind(ast.Call, parts):
        if isinstance(call.func, ast.Name):
            names = {argument.id for argument in of_kind(ast.Name, arguments_of(call))}
            if call not in alone:
                names -= helpers
            yield names, call.func
