"""Extraction of methods from a response: functions, class members, fenced code and truncated text.

The last complete definition of a method counts. A stub (a docstring, `pass`) repeats the skeleton and does not count.
Responses are untrusted text. They are parsed by `ast`, never executed, and raise nothing.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection
from dataclasses import dataclass

from marl_ray.environments.code_generation.extraction import (
    FENCE,
    LIST_MARK,
    MAX_PARSED,
    PARSE_COST,
    binds,
    block_end,
    first_line,
    import_lines,
    indentation,
    is_future,
    normalise_text,
    parse_or_line,
)
from marl_ray.plugins.code_completion.skeleton import FunctionNode, is_stub, methods_of

OPENING = re.compile(r"(?:async[ \t]+)?def[ \t]+(\w+)")
FORM_FEED = re.compile(r"^[ \t\f]*\f")
"""White space before a form feed, after which Python counts the indentation of a line anew."""
ENCLOSING = "class _:"
"""A line before indented text that makes the text parse without changing its indentation or strings."""


@dataclass(frozen=True, slots=True)
class Method:
    """A complete definition. `lines` are the original lines, including decorators, at the indentation `indent`.
    `inside` are the indices of lines that begin within a string. `names` and `attributes` are the names and attributes
    that the method mentions."""

    name: str
    lines: tuple[str, ...]
    indent: str
    inside: frozenset[int]
    decorated: bool
    names: frozenset[str]
    attributes: frozenset[str]

    def code(self, indent: str, decorators: Collection[str] = ()) -> str:
        """Return the source at another indentation, with `decorators` if the method has none."""
        lines = []
        if not self.decorated:
            for decorator in decorators:
                lines.append(indent + decorator)
        for number, line in enumerate(self.lines):
            if number in self.inside or not line.strip():
                lines.append(line)  # white space within a string is a part of the string
            else:
                lines.append(indent + line.removeprefix(self.indent))
        return "\n".join(lines)


@dataclass(frozen=True, slots=True, weakref_slot=True)
class ClassAnswer:
    """One parsed response: its complete definitions by name, the names of broken definitions, and its imports."""

    methods: dict[str, Method]
    broken: frozenset[str]
    imports: tuple[ast.Import | ast.ImportFrom, ...]

    def with_helpers(self, names: Collection[str], members: Collection[str]) -> dict[str, Method]:
        """Return the methods `names` and the methods that they need, except for other `members` of the class."""
        taken: dict[str, Method] = {}
        wanted = set(names)
        while True:
            more = {name: method for name, method in self.methods.items() if name in wanted}
            if not more:
                return taken
            taken |= more
            for method in more.values():
                wanted |= method.attributes
            wanted -= taken.keys() | set(members)

    def imports_of(self, methods: Collection[Method], future: bool) -> list[str]:
        """Return the imports that bind a name in these methods, or the `from __future__` imports."""
        mentioned = {"*"}.union(*(method.names for method in methods))
        lines = []
        for node in self.imports:
            if is_future(node) is future and (future or binds(node) & mentioned):
                lines.append(ast.unparse(node))
        return lines


def extract_methods(response: str, class_name: str) -> ClassAnswer:
    """Return the methods in a response to a request for methods of a class. If the text does not parse as a whole,
    methods on a line with a fence, backtick or list mark count only if the unchanged lines have no method of that
    name."""
    text = normalise_text(response)
    lines = text.strip("\n").split("\n")
    tree = _tree(lines, 0, indentation(lines[0]))
    if isinstance(tree, ast.Module):
        return _of_program(tree, lines, class_name)
    answer = _of_lines(lines)
    loose = _of_lines(FENCE.sub("\n", LIST_MARK.sub("", text)).split("\n"))
    methods = loose.methods | answer.methods
    return ClassAnswer(methods, answer.broken - methods.keys(), (*answer.imports, *loose.imports))


def _tree(lines: list[str], start: int, indent: str, end: int | None = None) -> ast.Module | int | None:
    """Return the syntax tree of some lines, or the index of the line with the error, or None without such a line."""
    body = lines[start:end]
    tree_or_line = parse_or_line("\n".join([ENCLOSING, *body] if indent else body))
    if not isinstance(tree_or_line, int):
        return tree_or_line
    return min(start + max(1, tree_or_line - bool(indent)) - 1, len(lines) - 1)


def _of_program(tree: ast.Module, lines: list[str], class_name: str) -> ClassAnswer:
    """Return the members of the class in a program, or its functions if the class is missing."""
    indent = indentation(lines[0])
    members: list[FunctionNode] = []
    functions = []
    imports: list[ast.Import | ast.ImportFrom] = []
    for node in _body(tree, indent):
        if isinstance(node, ast.ClassDef) and node.name == class_name:
            members += methods_of(node)
        elif isinstance(node, FunctionNode):
            functions.append(node)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            imports.append(node)
    methods = {}
    for definition in members or functions:
        if not is_stub(definition):
            methods[definition.name] = _method(definition, lines, bool(indent))
    return ClassAnswer(methods, frozenset(), tuple(imports))


def _of_lines(lines: list[str]) -> ClassAnswer:
    """Return every definition that parses by itself, until MAX_PARSED is used up."""
    methods = {}
    broken = set()
    rest = []
    index = 0
    cost = 0
    decorated: int | None = None
    while index < len(lines) and cost <= MAX_PARSED:
        line = lines[index]
        code = line.lstrip(" \t")
        opening = OPENING.match(code)
        if code.startswith("@"):
            if decorated is None:
                decorated = index
        elif opening:
            start = index if decorated is None else decorated
            node, end, parsed = _definition(lines, start, indentation(line), MAX_PARSED - cost)
            cost += parsed
            decorated = None
            if node is None:
                broken.add(opening[1])
            else:
                if not is_stub(node):
                    methods[node.name] = _method(node, lines[start:], bool(indentation(line)))
                index = end
                continue
        else:
            decorated = None
            rest.append(line.strip())
        index += 1
    return ClassAnswer(methods, frozenset(broken - methods.keys()), tuple(import_lines(rest)))


def _definition(lines: list[str], start: int, indent: str, budget: int) -> tuple[FunctionNode | None, int, int]:
    """Return the definition that begins at a line (None if it does not parse), its end, and the cost of the search. The
    first attempt is the block by indentation. If it does not parse (text in quotes or brackets may have any
    indentation), the text is cut before the line of the error until the rest parses. The definition is complete if more
    code follows it, or if the text after the cut is indented less than its body."""
    end = block_end(lines, start, len(indent))
    tree_or_line = _tree(lines, start, indent, end)
    cost = PARSE_COST + sum(map(len, lines[start:end]))
    cut = not isinstance(tree_or_line, ast.Module)
    if cut:
        end = len(lines)
    while cut and end > start and cost <= budget:
        tree_or_line = _tree(lines, start, indent, end)
        cost += PARSE_COST + sum(map(len, lines[start:end]))
        if not isinstance(tree_or_line, int):
            break
        end = min(tree_or_line, end - 1)
    if not isinstance(tree_or_line, ast.Module) or not tree_or_line.body:
        return None, start, cost
    node = _body(tree_or_line, indent)[0]
    if not isinstance(node, FunctionNode):
        return None, start, cost
    last = start + (node.end_lineno or node.lineno) - bool(indent)
    is_last = not "".join(lines[last:end]).strip()
    goes_on = end < len(lines) and len(indentation(lines[end])) >= node.body[0].col_offset
    if cut and is_last and goes_on:
        return None, last, cost
    return node, last, cost


def _body(tree: ast.Module, indent: str) -> list[ast.stmt]:
    """Return the statements of the text without the enclosing line."""
    if indent and isinstance(tree.body[0], ast.ClassDef):
        return tree.body[0].body
    return tree.body


def _method(node: FunctionNode, lines: list[str], enclosed: bool) -> Method:
    """Return a definition with its lines (`enclosed`: the tree has one more line before them)."""
    first = first_line(node) - enclosed
    last = (node.end_lineno or node.lineno) - enclosed
    inside: set[int] = set()
    names = set()
    attributes = set()
    for part in ast.walk(node):
        if isinstance(part, ast.Constant | ast.JoinedStr):
            # All lines of a string but its first one begin within the string.
            start = part.lineno + 1 - enclosed - first
            end = (part.end_lineno or 0) + 1 - enclosed - first
            inside.update(range(start, end))
        elif isinstance(part, ast.Name):
            names.add(part.id)
        elif isinstance(part, ast.Attribute):
            attributes.add(part.attr)
    own = []
    for number, line in enumerate(lines[first - 1 : last]):
        if number not in inside:
            line = FORM_FEED.sub("", line)
        own.append(line)
    own[-1] = own[-1].removesuffix("\\")  # a line break after it is valid at the end of a text only
    return Method(
        node.name,
        tuple(own),
        indentation(own[0]),
        frozenset(inside),
        bool(node.decorator_list),
        frozenset(names),
        frozenset(attributes),
    )
