"""Which way the values of a function take: an abstract interpreter over its syntax tree.

It follows live code only. What stands after a `return` or under `if False` is not run, and a nested function is
run where it is called, handed on or returned. Loops are run until nothing changes (at most MAX_ROUNDS times),
branches are joined. What it cannot follow, such as a method or a function from elsewhere, counts as an operation
and as an effect, and may call the functions that it is given.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Sequence

from marl_ray.environments.code_generation.expressions import Arguments, Expressions
from marl_ray.environments.code_generation.scopes import (
    Function,
    bound_names,
    captured_names,
    outer_names,
    own_names,
    parameters,
)
from marl_ray.environments.code_generation.values import NONE, Scope, Value, derived, element, join, join_envs, operate

MAX_ROUNDS = 4
MAX_CALLS = 8
"""How deep calls of nested functions are followed."""


class Flow(Expressions):
    """The values of one function, once `run` is through. `result` is what the function may return."""

    def __init__(self, helpers: Collection[str]) -> None:
        super().__init__(helpers)
        self.result = NONE
        self._running: list[Function] = []

    def run(self, function: ast.FunctionDef) -> None:
        """Follow the function. Raises TooMuchWork."""
        self.result = self._enter(function, Scope(), None)
        self._use(self.result)

    def _enter(self, function: Function, parent: Scope, call: Arguments | None) -> Value:
        """What a call of the function gives; None: a call from elsewhere, with arguments that are not known."""
        if function in self._running or len(self._running) >= MAX_CALLS:
            return derived()
        self._running.append(function)
        scope = Scope(own_names(function), outer_names(function), parent)
        scope.env = self._parameters(function, parent, call)
        if isinstance(function, ast.Lambda):
            result = self._value(function.body, scope)
        elif isinstance(function, ast.ClassDef):
            self._block(function.body, scope)
            methods = [self._enter(f, parent, None) for f in function.body if isinstance(f, ast.FunctionDef)]
            result = derived(*methods)
        else:
            if self._block(function.body, scope):
                scope.returned.append(NONE)
            result = join(scope.returned)
        self._running.pop()
        return result

    def _parameters(self, function: Function, scope: Scope, call: Arguments | None) -> dict[str, Value]:
        """The values of a function's parameters: as given, else the default or one that is not known."""
        env = {name: Value(direct=frozenset([name])) for name in parameters(function)}
        if isinstance(function, ast.ClassDef):
            return env
        given = function.args
        positional = [arg.arg for arg in given.posonlyargs + given.args]
        defaults = list(zip(reversed(positional), reversed(given.defaults), strict=False))
        defaults += [(a.arg, d) for a, d in zip(given.kwonlyargs, given.kw_defaults, strict=True) if d is not None]
        for name, default in defaults:
            value = self._value(default, scope)
            env[name] = value if call is not None else join([env[name], value])
        if call is not None:
            known = dict(zip(positional, call[0], strict=False)) | {name: v for name, v in call[1].items() if name}
            rest = derived(*call[0], *call[1].values(), keep_functions=True)
            env = {name: known.get(name, env[name] if name in dict(defaults) else rest) for name in env}
        return env

    def _block(self, block: Sequence[ast.stmt], scope: Scope) -> bool:
        """Run statements; whether the end is reached."""
        return all(self._statement(statement, scope) for statement in block)

    def _statement(self, node: ast.stmt, scope: Scope) -> bool:
        """Run one statement; whether what follows it is reached."""
        self._step()
        match node:
            case ast.Return(value=value):
                scope.returned.append(NONE if value is None else self._value(value, scope))
                return False
            case ast.Raise():
                self._use(self._parts(node, scope))
                return False
            case ast.Break():
                scope.breaks.append(dict(scope.env))
                return False
            case ast.Continue():
                scope.continues.append(dict(scope.env))
                return False
            case ast.Expr(value=value):
                self._value(value, scope)
            case ast.Assign(targets=targets, value=value):
                given = self._value(value, scope)
                for target in targets:
                    self._store(target, given, scope)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                self._store(target, self._value(value, scope), scope)
            case ast.AugAssign(target=target, op=op, value=value):
                before = self._read(target.id, scope) if isinstance(target, ast.Name) else derived()
                self._store(target, operate(op, before, self._value(value, scope)), scope)
            case ast.If(test=test, body=body, orelse=orelse):
                return self._branches(self._test(test, scope), [body, orelse], scope)
            case ast.While(test=test):
                return self._loop(node, scope, lambda: self._test(test, scope))
            case ast.For() | ast.AsyncFor():
                return self._loop(node, scope, lambda: self._next(node, scope))
            case ast.With(items=items, body=body) | ast.AsyncWith(items=items, body=body):
                for item in items:
                    entered = self._value(item.context_expr, scope)
                    self._use(entered)
                    if item.optional_vars is not None:
                        self._store(item.optional_vars, derived(entered), scope)
                outside = dict(scope.env)
                inside = [scope.env] if self._block(body, scope) else []
                scope.env = join_envs([outside, *inside])  # it may swallow an exception
            case ast.Try() | ast.TryStar():
                return self._try(node, scope)
            case ast.Match(subject=subject, cases=cases):
                return self._match(self._value(subject, scope), cases, scope)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                scope.env[name] = Value(functions=frozenset([(node, scope)]))
            case ast.Delete(targets=targets):
                for target in targets:
                    if isinstance(target, ast.Name):
                        scope.env.pop(target.id, None)
            case ast.Assert(test=test):
                return self._test(test, scope) is not False
        return True

    def _branches(self, truth: bool | None, blocks: Sequence[Sequence[ast.stmt]], scope: Scope) -> bool:
        """Run those of two branches that are live."""
        live = blocks if truth is None else [blocks[0] if truth else blocks[1]]
        before, ends = scope.env, []
        for block in live:
            scope.env = dict(before)
            if self._block(block, scope):
                ends.append(scope.env)
        scope.env = join_envs(ends)
        return bool(ends)

    def _loop(self, node: ast.For | ast.AsyncFor | ast.While, scope: Scope, begin: Callable[[], bool | None]) -> bool:
        """Run a loop; `begin` begins a round and says whether it takes place."""
        breaks, continues, changing = scope.breaks, scope.continues, scope.changing
        scope.breaks, scope.changing = [], changing | set(bound_names([node]))
        truth: bool | None = None
        for _ in range(MAX_ROUNDS):
            head = dict(scope.env)
            scope.continues = []
            truth = begin()
            if truth is False:
                break
            tested = dict(scope.env)
            ends = [scope.env] if self._block(node.body, scope) else []
            scope.env = join_envs([head, tested, *ends, *scope.continues])
            if scope.env == head:
                break
        leaves = truth is not True and self._block(node.orelse, scope)
        ends = [*scope.breaks, *([scope.env] if leaves else [])]
        scope.breaks, scope.continues, scope.changing = breaks, continues, changing
        scope.env = join_envs(ends)
        return bool(ends)

    def _next(self, node: ast.For | ast.AsyncFor, scope: Scope) -> bool | None:
        values = self._value(node.iter, scope)
        self.used |= values.origins
        if values.items == ():
            return False
        self._store(node.target, element(values), scope)
        return None

    def _try(self, node: ast.Try | ast.TryStar, scope: Scope) -> bool:
        seen, reached = [dict(scope.env)], True
        for statement in node.body:
            reached = self._statement(statement, scope)
            seen.append(dict(scope.env))
            if not reached:
                break
        ends = [scope.env] if reached and self._block(node.orelse, scope) else []
        for handler in node.handlers:
            scope.env = join_envs(seen)
            if handler.name:
                scope.env[handler.name] = derived()
            if self._block(handler.body, scope):
                ends.append(scope.env)
        scope.env = join_envs(ends or seen)
        return self._block(node.finalbody, scope) and bool(ends)

    def _match(self, subject: Value, cases: Sequence[ast.match_case], scope: Scope) -> bool:
        self.used |= subject.origins
        self.chosen |= bool(subject.origins)
        before, ends, rest = scope.env, [], True
        for case in cases:
            scope.env = dict(before) | dict.fromkeys(captured_names(case.pattern), derived(subject))
            truth = True if case.guard is None else self._test(case.guard, scope)
            if truth is not False and self._block(case.body, scope):
                ends.append(scope.env)
            if truth and isinstance(case.pattern, ast.MatchAs) and case.pattern.pattern is None:
                rest = False
                break
        ends += [before] if rest else []
        scope.env = join_envs(ends)
        return bool(ends)
