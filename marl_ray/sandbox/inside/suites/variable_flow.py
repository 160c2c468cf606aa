"""What one test may hand on to another: a test that reads what an untrusted one has made is not trusted either.

Decided by the text, and on the safe side: variables that stand in one statement may be aliases of each other, or hold
each other. Imports, constants, the program's functions and plain functions of the tests hand on nothing.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Sequence, Set
from dataclasses import dataclass

from .statements import Statement, stored_names


@dataclass(frozen=True, slots=True)
class VariableFlow:
    """Of one test. `reads`: those whose meaning before it matters to it; `touches`: those that may be changed by it, or
    be given what it has made.
    """

    reads: frozenset[str] = frozenset()
    touches: frozenset[str] = frozenset()


def variables(blocks: Sequence[Sequence[ast.stmt]], patches: bool) -> list[VariableFlow]:
    """For each test, from its statements. `patches`: whether the tests may set attributes, those of modules too."""
    statements = [[Statement(number, node) for node in block] for number, block in enumerate(blocks)]
    everything = [statement for block in statements for statement in block]
    bound = set().union(*(each.binds | stored_names(each.node) for each in everything))
    times = Counter(name for name, _ in {(name, ast.unparse(each.node)) for each in everything for name in each.binds})
    times.update(name for each in everything for name in _declared_global(each.node))
    constant = {
        name
        for each in everything
        if _is_constant(each.node, bound, patches)
        for name in each.binds
        if times[name] == 1
    }
    functions = {
        each.node.name: _free(each.node)
        for each in everything
        if isinstance(each.node, ast.FunctionDef) and times[each.node.name] == 1 and _is_plain(each.node, patches)
    }

    def expanded(names: Set[str]) -> set[str]:
        """The variables among some names, and those that the functions among them use."""
        found: set[str] = set()
        todo = list(names)
        while todo:
            name = todo.pop()
            if name not in found:
                found.add(name)
                todo += functions.get(name, ())
        return {name for name in found & bound if name not in constant and name not in functions}

    groups: dict[str, set[str]] = {}
    for each in everything:
        together = expanded(_mentioned(each))
        merged = together.union(*(groups.get(name, ()) for name in together))
        groups |= dict.fromkeys(merged, merged)
    found = []
    for block in statements:
        live: set[str] = set()
        for statement in reversed(block):
            live = statement.before(live)
        names = expanded(set().union(*map(_mentioned, block)))
        touches = frozenset(names.union(*(groups[name] for name in names)))
        found.append(VariableFlow(frozenset(expanded(live)), touches))
    return found


def _mentioned(statement: Statement) -> set[str]:
    return {*statement.binds, *statement.uses, *_declared_global(statement.node)}


def _declared_global(node: ast.AST) -> set[str]:
    return {name for part in ast.walk(node) if isinstance(part, ast.Global) for name in part.names}


def _is_constant(node: ast.stmt, bound: Set[str], patches: bool) -> bool:
    if isinstance(node, ast.Assign):
        value = node.value
        return isinstance(value, ast.Constant) or (isinstance(value, ast.Name) and value.id not in bound)
    return isinstance(node, ast.Import | ast.ImportFrom) and not patches


def _is_plain(node: ast.FunctionDef, patches: bool) -> bool:
    """Whether a function has no state of its own."""
    defaults = [*node.args.defaults, *filter(None, node.args.kw_defaults)]
    return not patches and not node.decorator_list and all(isinstance(default, ast.Constant) for default in defaults)


def _free(node: ast.FunctionDef) -> set[str]:
    """The names that a function has from outside."""
    used = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
    arguments = {part.arg for part in ast.walk(node) if isinstance(part, ast.arg)}
    return used - arguments - stored_names(node) | _declared_global(node)
