"""Splits of a one-function solution into a helper `aux`, which computes one expression, and a main that calls it."""

from __future__ import annotations

import ast
import symtable
from collections.abc import Iterator

from marl_ray.core.episode import Task
from marl_ray.environments.code_generation import CodeGeneration

PARTS = ast.BinOp | ast.Call | ast.Compare | ast.ListComp | ast.IfExp | ast.Subscript | ast.Constant | ast.Name


def good_split(task: Task, source: str) -> list[str] | None:
    """Return the first split in which main uses aux without being a thin wrapper or discarding its result, or None."""
    environment = CodeGeneration(2)
    for texts in splits(source, task.fields["entry_point"]):
        attempt = environment.attempt(task, texts, last=True)
        use = attempt.use
        if all(part.defined for part in attempt.parts) and use.called and not use.thin_wrapper and not use.misused:
            return texts
    return None


def splits(source: str, name: str) -> Iterator[list[str]]:
    """Yield the sources of aux and main for every expression of the function `name`, the longest first."""
    tree = ast.parse(source)
    imports = [ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    main = next(node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name)
    own = set().union(*map(_bound, symtable.symtable(ast.unparse(main), "main", "exec").get_children()))
    parts = [node for statement in main.body for node in ast.walk(statement) if isinstance(node, PARTS)]
    for part in sorted({ast.unparse(part) for part in parts}, key=lambda text: -len(text)):
        code = f"def aux():\n    return {part}"
        given = ", ".join(sorted(_read(symtable.symtable(code, "aux", "exec")) & own))
        taken = _Taken(ast.parse(part, mode="eval").body, f"aux({given})").visit(ast.parse(ast.unparse(main)))
        functions = (code.replace("aux()", f"aux({given})", 1), ast.unparse(taken))
        yield ["\n".join([*imports, function]) for function in functions]


def _bound(table: symtable.SymbolTable) -> set[str]:
    """Return the names that code binds, except imports."""
    names = {symbol.get_name() for symbol in table.get_symbols() if symbol.is_local() and not symbol.is_imported()}
    return names.union(*map(_bound, table.get_children()))


def _read(table: symtable.SymbolTable) -> set[str]:
    """Return the names that code reads and does not bind."""
    names = {symbol.get_name() for symbol in table.get_symbols() if symbol.is_global()}
    return names.union(*map(_read, table.get_children()))


class _Taken(ast.NodeTransformer):
    """Replaces every occurrence of an expression by a call."""

    def __init__(self, part: ast.expr, call: str) -> None:
        self.part, self.call = ast.dump(part), ast.parse(call, mode="eval").body

    def visit(self, node: ast.AST) -> ast.AST:
        return self.call if ast.dump(node) == self.part else self.generic_visit(node)
