"""Which way the values of a function take: its expressions. The statements are in `flow`."""

from __future__ import annotations

import ast
import builtins
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence

from marl_ray.environments.code_generation.scopes import COMPREHENSIONS, Function, stored_names
from marl_ray.environments.code_generation.values import (
    CONSTANTS,
    UNKNOWN,
    Scope,
    Value,
    derived,
    display,
    element,
    join,
    operate,
)

Arguments = tuple[Sequence[Value], dict[str | None, Value]]
"""Of a call: by position, and by name (None: a mapping of them)."""
MAX_STEPS = 20_000
"""Syntax nodes looked at, each as often as it is run; see `TooMuchWork`."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


BUILTINS = frozenset(dir(builtins))
CONVERSIONS = _words("bool bytes complex dict float frozenset int iter list set str tuple")
"""Builtins that give their argument back in another type."""
CALLERS = _words("filter map max min sorted")
"""Builtins that call a function they are given."""
WITHOUT_EFFECT = CALLERS | CONVERSIONS
WITHOUT_EFFECT |= _words("abs all any callable chr divmod enumerate format hash id isinstance len next ord pow range")
WITHOUT_EFFECT |= _words("print repr reversed round slice sum type zip")
"""What these builtins are given is used only if their result is."""


class TooMuchWork(Exception):
    """The function takes more than MAX_STEPS to follow. No honest program does."""


class Expressions(ABC):
    """Runs expressions; what it finds out is in the attributes.

    `calls` are the live helper calls, by number the helper's name; `used` those whose results reach an effect or a
    result; `chosen`: a live condition depends on a helper's result.
    """

    def __init__(self, helpers: Collection[str]) -> None:
        self.helpers = frozenset(helpers)
        self.calls: dict[int, str] = {}
        self.used: set[int] = set()
        self.chosen = False
        self._numbers: dict[tuple[int, str], int] = {}
        self._steps = 0

    @abstractmethod
    def _enter(self, function: Function, parent: Scope, call: Arguments | None) -> Value:
        """What a call of the function gives; None: a call from elsewhere, with arguments that are not known."""

    def _test(self, node: ast.expr, scope: Scope) -> bool | None:
        """Run a condition; what it comes to, if that is known."""
        return self._decides(self._value(node, scope))

    def _decides(self, value: Value) -> bool | None:
        self.used |= value.origins
        self.chosen |= bool(value.origins)
        return value.truth

    def _read(self, name: str, scope: Scope | None) -> Value:
        plain = Value(direct=frozenset([name]))
        while scope is not None:
            if name in scope.names:
                return scope.env.get(name, plain)
            scope = scope.parent
        return Value(functions=frozenset([name])) if name in self.helpers else plain

    def _value(self, node: ast.expr, scope: Scope) -> Value:
        """Run an expression."""
        self._step()
        match node:
            case ast.Constant(value=constant):
                return Value(constant=constant) if isinstance(constant, CONSTANTS) else derived()
            case ast.Name(id=name):
                return self._read(name, scope)
            case ast.NamedExpr(target=target, value=part):
                given = self._value(part, scope)
                self._store(target, given, scope)
                return given
            case ast.Call():
                return self._call(node, scope)
            case ast.BoolOp(op=op, values=parts):
                return self._bool_op(parts, isinstance(op, ast.Or), scope)
            case ast.IfExp(test=test, body=body, orelse=orelse):
                truth = self._test(test, scope)
                live = [body, orelse] if truth is None else [body if truth else orelse]
                return join([self._value(part, scope) for part in live])
            case ast.UnaryOp(op=outer, operand=ast.UnaryOp(op=inner, operand=part)) if type(outer) is type(inner):
                return self._value(part, scope)
            case ast.UnaryOp(op=op, operand=operand):
                value = self._value(operand, scope)
                if isinstance(op, ast.Not) and value.truth is not None:
                    return Value(constant=not value.truth)
                if isinstance(op, ast.USub) and isinstance(value.constant, int | float):
                    return Value(constant=-value.constant)
                return value if isinstance(op, ast.UAdd) else derived(value)
            case ast.BinOp(left=left, op=op, right=right) | ast.Compare(left=left, ops=[op], comparators=[right]):
                return operate(op, self._value(left, scope), self._value(right, scope))
            case ast.List(elts=[ast.Starred(value=part)]) | ast.Tuple(elts=[ast.Starred(value=part)]):
                return self._value(part, scope)
            case ast.List(elts=parts) | ast.Tuple(elts=parts) | ast.Set(elts=parts):
                values = [self._value(part, scope) for part in parts]
                known = not any(isinstance(part, ast.Starred) for part in parts)
                return display(list(enumerate(values)) if known else None, values)
            case ast.Dict(keys=keys, values=parts):
                values = [self._value(part, scope) for part in parts]
                known = all(isinstance(key, ast.Constant) for key in keys)
                names = [key.value for key in keys if isinstance(key, ast.Constant)]
                of_keys = [self._value(key, scope) for key in keys if key is not None]
                return display(list(zip(names, values, strict=True)) if known else None, values + of_keys)
            case ast.Subscript(value=part, slice=ast.Slice(lower=None, upper=None, step=None)):
                return self._value(part, scope)
            case ast.Subscript(value=part, slice=key):
                whole, index = self._value(part, scope), self._value(key, scope)
                found = element(whole, index.constant)
                return found if whole.items else derived(found, index, keep_functions=True)
            case ast.Attribute(value=part) | ast.Starred(value=part):
                return derived(self._value(part, scope), keep_functions=True)
            case ast.Await(value=part) | ast.FormattedValue(value=part, format_spec=None):
                return self._value(part, scope)
            case ast.JoinedStr(values=[ast.FormattedValue() as part]):
                return self._value(part, scope)
            case ast.Lambda():
                return Value(functions=frozenset([(node, scope)]))
            case ast.Yield() | ast.YieldFrom():
                given = self._parts(node, scope)
                scope.returned.append(derived(given))
                return derived()
            case _ if isinstance(node, COMPREHENSIONS):
                return self._comprehension(node, scope)
        return self._parts(node, scope)

    def _bool_op(self, parts: Sequence[ast.expr], either: bool, scope: Scope) -> Value:
        """`or` (either) or `and`: one of its parts, up to the first that decides."""
        results = []
        for part in parts[:-1]:
            value = self._value(part, scope)
            truth = self._decides(value)
            if truth is None or truth is either:
                results.append(value)
            if truth is either:
                return join(results)
        return join([*results, self._value(parts[-1], scope)])

    def _call(self, node: ast.Call, scope: Scope) -> Value:
        target = self._value(node.func, scope)
        arguments = [self._value(argument, scope) for argument in node.args]
        by_name = {keyword.arg: self._value(keyword.value, scope) for keyword in node.keywords}
        given = [*arguments, *by_name.values()]
        if target.functions and not isinstance(node.func, ast.Attribute):
            results = []
            for function in target.functions:
                if isinstance(function, str):
                    inner = [self._handed_on(value, node) for value in given]
                    changing = self._changes([*node.args, *node.keywords], scope)
                    results.append(self._helper_call(node, function, [*given, *inner], changing=changing))
                else:
                    results.append(self._enter(*function, (arguments, by_name)))
            return join(results)
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name in BUILTINS and not _is_local(name, scope):
            if name in CONVERSIONS and len(given) <= 1:
                return given[0] if given else Value(items=())
            if name in WITHOUT_EFFECT:
                inner = [self._handed_on(value, node) for value in given if name in CALLERS]
                return derived(*given, *inner)
            for value in given:
                self._use(value)
            return derived(*given)
        inner = [self._handed_on(value, node) for value in given]
        self.used |= derived(*given, *inner).origins
        return derived(target, *given, *inner, keep_functions=True)

    def _changes(self, nodes: Sequence[ast.AST], scope: Scope | None) -> bool:
        """Whether an expression differs from round to round of a loop around it."""
        names = {n.id for node in nodes for n in ast.walk(node) if isinstance(n, ast.Name)}
        while scope is not None:
            if names & scope.changing:
                return True
            scope = scope.parent
        return False

    def _comprehension(self, node: ast.AST, scope: Scope) -> Value:
        assert isinstance(node, COMPREHENSIONS)
        parts = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        names = frozenset(name for loop in node.generators for name in stored_names(loop.target))
        inner = Scope(names, parent=scope, changing=names)
        values: list[Value] = []
        for loop in node.generators:
            iterated = self._value(loop.iter, inner if values else scope)
            values.append(iterated)
            match parts, node.generators, loop:
                case [ast.Name(id=name)], [_], ast.comprehension(target=ast.Name(id=same), ifs=[]) if name == same:
                    return iterated
            self._store(loop.target, element(iterated), inner)
            truths = [self._test(test, inner) for test in loop.ifs]
            if iterated.items == () or False in truths:
                return Value(items=())
        return derived(*values, *(self._value(part, inner) for part in parts), keep_functions=True)

    def _parts(self, node: ast.AST, scope: Scope) -> Value:
        """What depends on all expressions directly below a node."""
        return derived(*(self._value(p, scope) for p in ast.iter_child_nodes(node) if isinstance(p, ast.expr)))

    def _handed_on(self, value: Value, site: ast.AST, *, helpers: bool = True) -> Value:
        """What the functions in a value may give to the code they are handed to."""
        results = []
        for function in value.functions:
            if not isinstance(function, str):
                results.append(self._enter(*function, None))
            elif helpers:
                results.append(self._helper_call(site, function, ()))
        return derived(*results)

    def _helper_call(self, site: ast.AST, name: str, arguments: Sequence[Value], *, changing: bool = True) -> Value:
        number = self._numbers.setdefault((id(site), name), len(self._numbers))
        self.calls[number] = name
        origins = frozenset([number]).union(*(value.origins for value in arguments))
        return Value(frozenset() if changing else frozenset([number]), changing, origins)

    def _use(self, value: Value) -> None:
        """The value reaches an effect or a result."""
        self.used |= value.origins | self._handed_on(value, ast.Pass(), helpers=False).origins

    def _store(self, target: ast.expr, value: Value, scope: Scope) -> None:
        match target:
            case ast.Name(id=name):
                owner: Scope | None = scope
                while owner is not None and name not in owner.names:
                    owner = owner.parent
                if owner is None or name in scope.outer:
                    self.helpers -= {name}  # a helper's name that is bound anew is the helper no longer
                    self._use(value)
                else:
                    owner.env[name] = value
            case ast.Tuple(elts=targets) | ast.List(elts=targets):
                spread = any(isinstance(part, ast.Starred) for part in targets)
                for index, part in enumerate(targets):
                    self._store(part, element(value, UNKNOWN if spread else index), scope)
            case ast.Starred(value=part):
                self._store(part, derived(value, keep_functions=True), scope)
            case _:  # an attribute or an element of something
                self._parts(target, scope)
                self._use(value)

    def _step(self) -> None:
        self._steps += 1
        if self._steps > MAX_STEPS:
            raise TooMuchWork


def _is_local(name: str, scope: Scope | None) -> bool:
    while scope is not None:
        if name in scope.names:
            return True
        scope = scope.parent
    return False
