"""The buggy program, and what patches make of it.

What can be patched are the functions at its top level. A patched function stands where the old one stood; everything
else stays as it is. Imports that a patch brings along stand above its function, unless the program has them.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from marl_ray.environments.code_generation.extraction import Contribution, parse, source_of

Import = ast.Import | ast.ImportFrom


@dataclass(frozen=True, slots=True)
class BuggyProgram:
    """A program's text, and of each function at its top level, in their order, the lines it takes, from 1.

    `imported` is what its own imports bring, one entry a name.
    """

    text: str
    functions: Mapping[str, range]
    imported: frozenset[str]

    @property
    def lines(self) -> list[str]:
        return self.text.split("\n")


@dataclass(frozen=True, slots=True)
class PatchedProgram:
    """The text, and on which line of it each function starts."""

    text: str
    starts: Mapping[str, int]


@lru_cache(maxsize=1024)
def buggy_program(text: str) -> BuggyProgram:
    """The program of a task. Raises ValueError, in one line, for what is none."""
    tree = parse(text)
    if tree is None:
        raise ValueError("does not parse")
    functions: dict[str, range] = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            functions.pop(node.name, None)  # of two definitions the second is in force
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            functions[node.name] = range(first, (node.end_lineno or first) + 1)
    imported = (name for node in tree.body if isinstance(node, Import) for name in _brought(node))
    return BuggyProgram(text, functions, frozenset(imported))


def shared_out(program: BuggyProgram, patchers: int) -> list[tuple[str, ...]]:
    """The functions that each patcher may change: in their order, dealt one by one."""
    names = list(program.functions)
    return [tuple(names[patcher::patchers]) for patcher in range(patchers)]


def patched(program: BuggyProgram, parts: Sequence[Contribution]) -> PatchedProgram:
    """The program with these functions in place of its own of the same names."""
    new = {part.name: part for part in parts}
    future = [line for line in dict.fromkeys(f for part in parts for f in part.future) if not _known(line, program)]
    old, text, starts, done = program.lines, list(future), {}, 0
    for name, place in program.functions.items():
        text += old[done : place.start - 1]
        imports, function = _split(new[name], program) if name in new else ([], old[place.start - 1 : place.stop - 1])
        text += imports
        starts[name] = len(text) + 1
        text += function
        done = place.stop - 1
    text += old[done:]
    return PatchedProgram("\n".join(text), starts)


def _split(part: Contribution, program: BuggyProgram) -> tuple[list[str], list[str]]:
    """A patch's imports that the program has not, and its function's lines."""
    tree = None if part.function is None else parse(part.code)
    if tree is None or not isinstance(tree.body[-1], ast.FunctionDef):
        return [], part.code.split("\n")
    lines = [ast.unparse(node) for node in tree.body[:-1]]
    function = source_of(tree.body[-1], part.code).split("\n")
    return [line for line in lines if not _known(line, program)], function


def _known(line: str, program: BuggyProgram) -> bool:
    """Whether the program's own imports bring all that this one does."""
    return all(_brought(node) <= program.imported for node in ast.parse(line).body if isinstance(node, Import))


def _brought(node: Import) -> set[str]:
    """What an import brings, one text a name: two imports that bring the same have the same."""
    module = f"from {'.' * node.level}{node.module or ''} " if isinstance(node, ast.ImportFrom) else ""
    return {f"{module}import {alias.name} as {alias.asname}" for alias in node.names}
