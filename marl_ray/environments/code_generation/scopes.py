"""Which names a piece of syntax binds: scopes as Python has them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import lru_cache

from marl_ray.environments.code_generation.extraction import own_nodes

COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef


def parameters(function: Function) -> list[str]:
    """A function's parameters: those given by position first, then by name only, then `*` and `**`."""
    if isinstance(function, ast.ClassDef):
        return []
    given = function.args
    starred = [arg for arg in (given.vararg, given.kwarg) if arg is not None]
    return [arg.arg for arg in [*given.posonlyargs, *given.args, *given.kwonlyargs, *starred]]


def outer_names(function: Function) -> frozenset[str]:
    """Names that a function declares to be global or of the function around it."""
    nodes = [] if isinstance(function, ast.Lambda) else list(own_nodes(function.body))
    return frozenset(name for n in nodes if isinstance(n, ast.Global | ast.Nonlocal) for name in n.names)


@lru_cache(maxsize=64)
def own_names(function: Function) -> frozenset[str]:
    """Names that are a function's own: parameters, and whatever its body binds and does not declare outer."""
    names = set(parameters(function))
    if not isinstance(function, ast.Lambda):
        names |= set(bound_names(function.body))
    return frozenset(names) - outer_names(function)


def bound_names(body: list[ast.stmt]) -> Iterator[str]:
    """Names that statements bind in their own scope: a comprehension's variable is its own, a walrus in it is not."""
    nodes = list(own_nodes(body))
    inner = {
        id(target)
        for node in nodes
        if isinstance(node, COMPREHENSIONS)
        for part in node.generators
        for target in ast.walk(part.target)
    }
    for node in nodes:
        match node:
            case ast.Name(id=name, ctx=ast.Store() | ast.Del()) if id(node) not in inner:
                yield name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.alias(name=name, asname=alias):
                yield alias or name.split(".")[0]
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                yield name
            case ast.MatchMapping(rest=str(name)):
                yield name


def stored_names(target: ast.AST) -> set[str]:
    """Names in an assignment's target."""
    return {n.id for n in ast.walk(target) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}


def captured_names(pattern: ast.pattern) -> set[str]:
    """Names that a `case` binds."""
    found = {getattr(n, "rest" if isinstance(n, ast.MatchMapping) else "name", None) for n in ast.walk(pattern)}
    return {name for name in found if name is not None}
