"""How main uses the helpers that other agents wrote, read from its syntax tree.

Scopes are respected: a parameter, a local variable or an import named like a helper is not the helper. Where
the flow of values cannot be known from the tree, main gets the benefit of the doubt.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from marl_ray.environments.extraction import Contribution, own_nodes, without_docstring

COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


@dataclass(frozen=True, slots=True)
class HelperUse:
    """Helpers that main calls; those of which it throws a result away; whether it only wraps a helper."""

    called: frozenset[str] = frozenset()
    misused: frozenset[str] = frozenset()
    thin_wrapper: bool = False


def helper_use(main: Contribution, helpers: Collection[str]) -> HelperUse:
    """What main makes of the helpers."""
    if main.function is None:
        return HelperUse()
    calls = dict(_calls(main.function, frozenset(helpers) - main.imported))
    return HelperUse(
        called=frozenset(calls.values()),
        misused=frozenset(_thrown_away(main.function, calls)),
        thin_wrapper=_is_thin_wrapper(main.function, calls),
    )


def _calls(node: ast.AST, visible: frozenset[str]) -> Iterator[tuple[ast.AST, str]]:
    """Calls of helpers below `node`, each with the helper's name; `visible` are those not shadowed there."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        visible -= _bound(node)
    elif isinstance(node, COMPREHENSIONS):
        targets = (inner for part in node.generators for inner in ast.walk(part.target))
        visible -= {inner.id for inner in targets if isinstance(inner, ast.Name)}
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in visible:
        yield node, node.func.id
    for child in ast.iter_child_nodes(node):
        yield from _calls(child, visible)


def _bound(function: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> set[str]:
    """Names that are the function's own: parameters, and whatever its body binds."""
    parameters = function.args
    names = {arg.arg for arg in parameters.posonlyargs + parameters.args + parameters.kwonlyargs}
    names |= {arg.arg for arg in (parameters.vararg, parameters.kwarg) if arg is not None}
    if isinstance(function, ast.Lambda):
        return names
    nodes = list(own_nodes(function.body))
    # A comprehension's variable is its own; a walrus inside it binds in the function.
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
                names.add(name)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
            case ast.alias(name=name, asname=alias):
                names.add(alias or name.split(".")[0])
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                names.add(name)
            case ast.MatchMapping(rest=str(name)):
                names.add(name)
    return names


def _is_thin_wrapper(function: ast.FunctionDef, calls: dict[ast.AST, str]) -> bool:
    """A body that only returns a helper's result, or assigns it to a name and returns that name."""
    match without_docstring(function.body):
        case [ast.Return(value=value)]:
            return value in calls or (isinstance(value, ast.NamedExpr) and value.value in calls)
        case [
            ast.Assign(targets=[ast.Name(id=name)], value=value) | ast.AnnAssign(target=ast.Name(id=name), value=value),
            ast.Return(value=ast.Name(id=returned)),
        ]:
            return value in calls and name == returned
    return False


@dataclass(frozen=True, slots=True)
class _Place:
    """A statement's place: its index in a block, and the compound statement that owns the block."""

    block: list[ast.stmt]
    index: int
    owner: ast.AST


def _thrown_away(function: ast.FunctionDef, calls: dict[ast.AST, str]) -> Iterator[str]:
    """Helpers of which a result is a bare statement, or assigned and not used before it is gone."""
    for scope in [function, *(node for node in ast.walk(function) if isinstance(node, ast.FunctionDef))]:
        nodes = own_nodes(scope.body)
        outer = {n for node in nodes if isinstance(node, ast.Global | ast.Nonlocal) for n in node.names}
        for path in _places(scope.body, scope, []):
            statement = path[0].block[path[0].index]
            match statement:
                case ast.Expr(value=value) if value in calls:
                    yield calls[value]
                case ast.Assign(value=value) | ast.AnnAssign(value=value) if value in calls:
                    names = _assigned(statement)
                    if names is not None and not names & outer and not _used_later(names, path):
                        yield calls[value]


def _places(block: list[ast.stmt], owner: ast.AST, above: list[_Place]) -> Iterator[list[_Place]]:
    """Every statement of a scope as the path to it, innermost place first; nested scopes are not entered."""
    for index, statement in enumerate(block):
        path = [_Place(block, index, owner), *above]
        yield path
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        parts = [statement, *getattr(statement, "handlers", []), *getattr(statement, "cases", [])]
        for part in parts:
            for name in ("body", "orelse", "finalbody"):
                yield from _places(getattr(part, name, []), statement, path)


def _used_later(names: set[str], path: list[_Place]) -> bool:
    """Whether a value just bound to `names` may be read before it is overwritten or the function returns."""
    for place in path:
        for statement in place.block[place.index + 1 :]:
            if _reads(statement, names):
                return True
            names = names - (_assigned(statement) or set())
            if not names or isinstance(statement, ast.Return):
                return False
        # The next round of a loop, or a handler, may still read it.
        if isinstance(place.owner, ast.For | ast.While | ast.Try) and _reads(place.owner, names):
            return True
    return False


def _reads(statement: ast.AST, names: set[str]) -> bool:
    for node in ast.walk(statement):
        if isinstance(node, ast.Name) and node.id in names and isinstance(node.ctx, ast.Load):
            return True
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name) and node.target.id in names:
            return True
    return False


def _assigned(statement: ast.stmt) -> set[str] | None:
    """Names that an assignment or deletion binds anew; None when it also reaches into an object."""
    if isinstance(statement, ast.Assign | ast.Delete):
        targets = list(statement.targets)
    elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
        targets = [statement.target]
    else:
        return set()
    names: set[str] = set()
    while targets:
        target = targets.pop()
        if isinstance(target, ast.Name):
            names.add(target.id)
        elif isinstance(target, ast.Tuple | ast.List):
            targets.extend(target.elts)
        elif isinstance(target, ast.Starred):
            targets.append(target.value)
        else:
            return None
    return names
