"""The buggy program, the program after patches, and the differences between two programs in lines and in tokens.

Patches replace functions at the top level of the program. A patch's imports go above its function unless the program
has them already. A line diff ignores blank lines and white space at the ends of lines. Tokens measure the size of a
change, because any change fits into one line.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import lru_cache

from marl_ray.environments.code_generation.extraction import ExtractedFunction, first_line, parse, source_of
from marl_ray.sandbox import syntax_tree

TOKEN = re.compile(r"(?m)^[ \t]+(?=\S)|\w{1,12}|[^\w\s]")
"""A token: the indentation of a line, at most 12 characters of a word, or a symbol, in strings and comments too."""
RUNS = ast.Call | ast.NamedExpr | ast.Lambda | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
"""Expressions that may run other code."""


@dataclass(frozen=True, slots=True)
class BuggyProgram:
    """A program's text, and the lines (from 1) of each function at its top level. `imported` describes the names that
    the program's imports bind, one entry per name."""

    text: str
    functions: Mapping[str, range]
    imported: frozenset[str]

    @property
    def lines(self) -> list[str]:
        return self.text.split("\n")


@dataclass(frozen=True, slots=True)
class Hunk:
    """One hunk of a diff: the lines `old` of the old text became the lines `new`. `first` and `last` are the line
    numbers (from 1) of `old` in the old text, or of the neighbouring lines if lines are only added."""

    first: int
    last: int
    old: tuple[str, ...]
    new: tuple[str, ...]

    @property
    def size(self) -> int:
        """Number of changed lines; a replaced line counts once."""
        return max(len(self.old), len(self.new))


@dataclass(frozen=True, slots=True)
class LineDiff:
    """The differences between two texts, in order.

    Example:
        >>> diff_lines("a = 1\\nb = 2", "a = 1\\nb = 3").size
        1
    """

    hunks: tuple[Hunk, ...]

    @property
    def size(self) -> int:
        return sum(hunk.size for hunk in self.hunks)

    def changes(self, line: int) -> bool:
        """Return whether the diff changes a line of the old text, or adds lines next to it."""
        return any(hunk.first <= line <= hunk.last for hunk in self.hunks)


@lru_cache(maxsize=1024)
def parse_buggy_program(text: str) -> BuggyProgram:
    """Parse the program of a task. Raises ValueError if it does not parse."""
    tree = parse(text)
    if tree is None:
        raise ValueError("does not parse")
    functions: dict[str, range] = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            functions.pop(node.name, None)  # a later definition replaces an earlier one
            functions[node.name] = range(first_line(node), (node.end_lineno or node.lineno) + 1)
    return BuggyProgram(text, functions, _imported_names(tree))


def assign_functions(program: BuggyProgram, patchers: int) -> list[tuple[str, ...]]:
    """Return the functions that each patcher may change, dealt out round-robin."""
    names = list(program.functions)
    return [tuple(names[patcher::patchers]) for patcher in range(patchers)]


def apply_patches(program: BuggyProgram, parts: Sequence[ExtractedFunction]) -> tuple[str, dict[str, int]]:
    """Return the program with these functions in place of its own, and the line on which each function starts."""
    new = {}
    future: dict[str, None] = {}
    for part in parts:
        new[part.name] = part
        future.update(dict.fromkeys(part.future))
    # Imports from `__future__` are valid only above all other code.
    text = [line for line in future if not _is_imported(line, program)]
    old = program.lines
    starts = {}
    done = 0  # lines of the old program that are in the new text, or replaced
    for name, place in program.functions.items():
        text += old[done : place.start - 1]
        done = place.stop - 1
        function = old[place.start - 1 : done]
        if name in new:
            imports, function = _split_imports(new[name], program)
            text += imports
        starts[name] = len(text) + 1
        text += function
    return "\n".join([*text, *old[done:]]), starts


def _split_imports(part: ExtractedFunction, program: BuggyProgram) -> tuple[list[str], list[str]]:
    """Return a patch's imports that the program lacks, and its function's lines."""
    tree = None
    if part.function is not None:
        tree = parse(part.code)
    if tree is None or not isinstance(tree.body[-1], ast.FunctionDef):
        return [], part.code.split("\n")
    imports = []
    for node in tree.body[:-1]:
        line = ast.unparse(node)
        if not _is_imported(line, program):
            imports.append(line)
    return imports, source_of(tree.body[-1], part.code).split("\n")


def _is_imported(line: str, program: BuggyProgram) -> bool:
    """Return whether the program's own imports bind all names of this import."""
    return _imported_names(syntax_tree(line)) <= program.imported


def _imported_names(tree: ast.Module) -> frozenset[str]:
    """Return one canonical import statement per name that the imports at the top level bind."""
    names: set[str] = set()
    for node in tree.body:
        if not isinstance(node, ast.Import | ast.ImportFrom):
            continue
        module = ""
        if isinstance(node, ast.ImportFrom):
            module = f"from {'.' * node.level}{node.module or ''} "
        for alias in node.names:
            names.add(f"{module}import {alias.name} as {alias.asname}")
    return frozenset(names)


def diff_lines(old: str, new: str) -> LineDiff:
    """Return the diff from `old` to `new`."""
    numbers, before = _numbered_lines(old)
    _, after = _numbered_lines(new)
    hunks = []
    # `autojunk` would ignore lines that are frequent in long programs.
    for kind, i, end, j, stop in SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if kind == "equal":
            continue
        # Lines that are only added have no numbers of their own, but neighbours; an empty text has line 1.
        around = numbers[i:end] or numbers[max(0, i - 1) : i + 1] or [1]
        hunks.append(Hunk(around[0], around[-1], tuple(before[i:end]), tuple(after[j:stop])))
    return LineDiff(tuple(hunks))


def _numbered_lines(text: str) -> tuple[list[int], list[str]]:
    """Return the numbers (from 1) of the lines that are not blank, and these lines."""
    numbers = []
    lines = []
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            numbers.append(number)
            lines.append(line.rstrip())
    return numbers, lines


@lru_cache(maxsize=1024)
def count_changed_tokens(old: str, new: str) -> int:
    """Return the number of tokens that differ between two texts; a replaced token counts once.

    Example:
        >>> count_changed_tokens("a = b + 1", "a = b - 1  # sign")
        3
    """
    before = TOKEN.findall(old)
    after = TOKEN.findall(new)
    if len(after) > 2 * len(before) + 200:
        return len(after)  # bounds the time of the comparison
    count = 0
    for kind, i, end, j, stop in SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if kind != "equal":
            count += max(end - i, stop - j)
    return count


def definition_code(function: ast.FunctionDef) -> frozenset[str]:
    """Return the decorators, defaults and calls in annotations of a function: code that runs when the function is
    defined, outside of its tests."""
    arguments = function.args
    annotations = [function.returns]
    for node in ast.walk(arguments):
        if isinstance(node, ast.arg):
            annotations.append(node.annotation)
    nodes = [*function.decorator_list, *arguments.defaults, *arguments.kw_defaults]
    for annotation in annotations:
        if annotation is not None and any(isinstance(part, RUNS) for part in ast.walk(annotation)):
            nodes.append(annotation)
    # A keyword without a default, and a function without an annotated result, have None.
    return frozenset(map(ast.unparse, filter(None, nodes)))


@lru_cache(maxsize=1024)
def allowed_definition_code(buggy: str, reference: str, name: str) -> frozenset[str]:
    """Return the definition code that a patch of a function may have: that of the two programs' own functions."""
    allowed: set[str] = set()
    for text in filter(None, (buggy, reference)):
        tree = parse(text)
        for node in tree.body if tree is not None else ():
            if isinstance(node, ast.FunctionDef) and node.name == name:
                allowed |= definition_code(node)
    return frozenset(allowed)
