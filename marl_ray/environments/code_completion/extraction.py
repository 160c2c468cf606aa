"""From a response to the methods in it, by `ast`: as functions, as members of the class, in text and fences, cut short.

Of the class's methods every whole definition counts, the last of each name. One that says nothing (a docstring, `pass`)
is the skeleton repeated, and counts as not written. What a response defines besides, for instance a helper method,
comes along where a method that is taken mentions it as an attribute; imports where one mentions a name that they bind.
All else is left out: constants, functions that are no methods, calls.

Responses are untrusted text. Nothing here runs them, and nothing here raises on them.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection
from dataclasses import dataclass

from marl_ray.environments.code_completion.skeleton import FunctionNode, first_line, is_stub, methods_of
from marl_ray.environments.code_generation.extraction import (
    FENCE,
    LIST_MARK,
    MAX_PARSED,
    PARSE_COST,
    binds,
    block_end,
    import_lines,
    indentation,
    is_future,
    parse_or_line,
    plain,
)

OPENING = re.compile(r"(?:async[ \t]+)?def[ \t]+(\w+)")
ENCLOSING = "class _:"
"""Put before indented text, so that it parses where it stands: text within strings must not be moved."""


@dataclass(frozen=True, slots=True)
class Method:
    """A whole definition. `lines` are as they were written, decorators included, at the indentation `indent`.

    `inside` are the numbers (from 0) of lines that begin within a string. `names` and `attributes` are what it
    mentions.
    """

    name: str
    lines: tuple[str, ...]
    indent: str
    inside: frozenset[int]
    decorated: bool
    names: frozenset[str]
    attributes: frozenset[str]

    def code(self, indent: str, decorators: Collection[str] = ()) -> str:
        """The source at another indentation; with these decorators if it has none of its own."""
        moved = [
            line if number in self.inside or not line.strip() else indent + line.removeprefix(self.indent)
            for number, line in enumerate(self.lines)
        ]
        return "\n".join([*(indent + decorator for decorator in decorators if not self.decorated), *moved])


@dataclass(frozen=True, slots=True, weakref_slot=True)
class ClassAnswer:
    """One response, read: its whole definitions by name, the names of those that do not parse, its imports."""

    methods: dict[str, Method]
    broken: frozenset[str]
    imports: tuple[ast.Import | ast.ImportFrom, ...]

    def with_helpers(self, wanted: Collection[str], members: Collection[str]) -> dict[str, Method]:
        """The methods of these names, and the further ones that they need; none of the class's other `members`."""
        taken = {name: method for name, method in self.methods.items() if name in wanted}
        while True:
            mentioned = {name for method in taken.values() for name in method.attributes}
            more = {n: m for n, m in self.methods.items() if n in mentioned and n not in taken and n not in members}
            if not more:
                return taken
            taken |= more

    def imports_of(self, methods: Collection[Method], future: bool) -> list[str]:
        """The imports that bind a name these methods mention; or those `from __future__`."""
        mentioned = {"*"}.union(*(method.names for method in methods))
        return [ast.unparse(i) for i in self.imports if is_future(i) is future and (future or binds(i) & mentioned)]


def answer_of(response: str, class_name: str) -> ClassAnswer:
    """The methods in a response that was asked for some of a class's.

    Of a text that is no program, what stands on one line with a fence, a backtick or a list mark counts where its
    lines as they are have no such method.
    """
    text = plain(response)
    lines = text.strip("\n").split("\n")
    tree = _tree(lines, 0, _indent(lines[0]))
    if isinstance(tree, ast.Module):
        return _of_program(tree, lines, class_name)
    answer = _of_lines(lines)
    loose = _of_lines(FENCE.sub("\n", LIST_MARK.sub("", text)).split("\n"))
    methods = loose.methods | answer.methods
    return ClassAnswer(methods, answer.broken - methods.keys(), (*answer.imports, *loose.imports))


def _tree(lines: list[str], start: int, indent: str, end: int | None = None) -> ast.Module | int | None:
    """The tree of some lines; or the index of the line with the error, or None when there is no such line."""
    body = lines[start:end]
    found = parse_or_line("\n".join([ENCLOSING, *body] if indent else body))
    if not isinstance(found, int):
        return found
    return min(start + max(1, found - bool(indent)) - 1, len(lines) - 1)


def _of_program(tree: ast.Module, lines: list[str], class_name: str) -> ClassAnswer:
    """Of lines that parse: the members of the class if it is there, else the functions."""
    indent = _indent(lines[0])
    body = _body(tree, indent)
    classes = [node for node in body if isinstance(node, ast.ClassDef) and node.name == class_name]
    functions = [node for node in body if isinstance(node, FunctionNode)]
    found = [method for node in classes for method in methods_of(node)] or functions
    imports = tuple(node for node in body if isinstance(node, ast.Import | ast.ImportFrom))
    written = [node for node in found if not is_stub(node)]
    return ClassAnswer({node.name: _method(node, lines, bool(indent)) for node in written}, frozenset(), imports)


def _of_lines(lines: list[str]) -> ClassAnswer:
    """Of lines that are no program: every definition that parses by itself, until MAX_PARSED is used up."""
    methods: dict[str, Method] = {}
    broken: set[str] = set()
    rest: list[str] = []
    index = cost = 0
    decorated: int | None = None
    while index < len(lines) and cost <= MAX_PARSED:
        line = lines[index]
        opening = OPENING.match(line.lstrip(" \t"))
        if line.lstrip(" \t").startswith("@"):
            decorated = index if decorated is None else decorated
        elif opening:
            start = index if decorated is None else decorated
            node, end, parsed = _definition(lines, start, _indent(line), MAX_PARSED - cost)
            cost += parsed
            decorated = None
            if node is None:
                broken.add(opening[1])
            else:
                if not is_stub(node):
                    methods[node.name] = _method(node, lines[start:], bool(_indent(line)))
                index = end
                continue
        else:
            decorated = None
            rest.append(line.strip())
        index += 1
    return ClassAnswer(methods, frozenset(broken - methods.keys()), tuple(import_lines(rest)))


def _definition(lines: list[str], start: int, indent: str, budget: int) -> tuple[FunctionNode | None, int, int]:
    """The definition that begins at a line (None: it does not parse), where it ends, and what the search cost.

    First its block by indentation is tried. Where that does not parse (text in quotes or brackets may stand
    anywhere), the line of the error and what follows it are cut off until the rest parses. It is whole if more code
    was left after it, or if what was cut off stands further out than its body.
    """
    end = block_end(lines, start, len(indent))
    found = _tree(lines, start, indent, end)
    cost = PARSE_COST + sum(map(len, lines[start:end]))
    cut = not isinstance(found, ast.Module)
    end = len(lines) if cut else end
    while cut and end > start and cost <= budget:
        found = _tree(lines, start, indent, end)
        cost += PARSE_COST + sum(map(len, lines[start:end]))
        if not isinstance(found, int):
            break
        end = min(found, end - 1)
    if not isinstance(found, ast.Module) or not found.body:
        return None, start, cost
    node = _body(found, indent)[0]
    if not isinstance(node, FunctionNode):
        return None, start, cost
    last = start + (node.end_lineno or node.lineno) - bool(indent)
    is_last = cut and end < len(lines) and not any(line.strip() for line in lines[last:end])
    whole = not is_last or indentation(lines[end]) < node.body[0].col_offset
    return (node if whole else None), last, cost


def _body(tree: ast.Module, indent: str) -> list[ast.stmt]:
    """What stands in the text, without what encloses it."""
    return tree.body[0].body if indent and isinstance(tree.body[0], ast.ClassDef) else tree.body


def _method(node: FunctionNode, lines: list[str], enclosed: bool) -> Method:
    """A definition, from the lines of the tree in which it stands (`enclosed`: with one line more before them)."""
    first, last = first_line(node) - enclosed, (node.end_lineno or node.lineno) - enclosed
    strings = [part for part in ast.walk(node) if isinstance(part, ast.Constant | ast.JoinedStr)]
    inside = {n - enclosed - first for part in strings for n in range(part.lineno + 1, (part.end_lineno or 0) + 1)}
    return Method(
        node.name,
        tuple(lines[first - 1 : last]),
        _indent(lines[first - 1]),
        frozenset(inside),
        bool(node.decorator_list),
        frozenset(part.id for part in ast.walk(node) if isinstance(part, ast.Name)),
        frozenset(part.attr for part in ast.walk(node) if isinstance(part, ast.Attribute)),
    )


def _indent(line: str) -> str:
    return line[: indentation(line)]
