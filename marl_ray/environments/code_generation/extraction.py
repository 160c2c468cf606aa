"""Extraction of the requested function, with the imports that it mentions, from a response.

If a response defines the function more than once, the definition of the best grade is used, the last one among equals.
Responses are untrusted text. They are parsed by `ast`, never executed, and raise nothing.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, replace

from marl_ray.sandbox import syntax_tree

MAX_CHARS = 32_000
"""Maximum characters of a response that are read, about 8,000 tokens."""
MAX_DEPTH = 200
"""Maximum depth of a syntax tree, so that recursion over a tree is safe. Deeper text counts as not parsing."""
MAX_PARSED = 8 * MAX_CHARS
"""Maximum characters parsed in search of one function. Each attempt costs PARSE_COST more."""
PARSE_COST = 100
MAX_IMPORTS = 64
"""Maximum import statements read from text that does not parse, and maximum lines of one of them."""

SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
COMPLETE = 3
"""Grade of a definition that is complete and returns a value."""
BEGINNING = 2
"""Grade of a truncated definition whose beginning parses and returns a value."""
WITHOUT_VALUE = 1
"""Grade of a complete definition that returns no value."""
BROKEN = 0
"""Grade of a definition that does not parse: the syntax error counts for its author."""

FENCE = re.compile(r"(?:`+|~~~+)[ \t]*(?:[Pp]ython\d?\b|py\b)?[ \t]*")
LIST_MARK = re.compile(r"(?m)^[ \t]*(?:[-*+>]|\d{1,3}[.)])[ \t]+(?=(?:def|from|import|@)\b)")


@dataclass(frozen=True, slots=True)
class ExtractedFunction:
    """One response's contribution to the joint program. `code` are the imports and the function, a broken definition
    unchanged, or nothing. `function` is the syntax tree of the function, None if it is broken or missing. `future` are
    the `from __future__` imports, which go first in the program. `imported` are the names that the other imports bind.
    `problem` is empty if the function is there and returns a value."""

    name: str
    code: str = ""
    future: tuple[str, ...] = ()
    function: ast.FunctionDef | None = None
    imported: frozenset[str] = frozenset()
    problem: str = ""

    @property
    def defined(self) -> bool:
        """Whether the function is there and returns a value."""
        return not self.problem


@dataclass(frozen=True, slots=True)
class _Definition:
    """One definition of the function: its grade, lines, syntax tree (None if broken), and the imports around it."""

    grade: int
    source: str
    function: ast.FunctionDef | None = None
    imports: tuple[ast.Import | ast.ImportFrom, ...] = ()


def extract_function(response: str, name: str) -> ExtractedFunction:
    """Return the contribution of a response to a request for the function `name`."""
    if not strip_fence(response):
        return ExtractedFunction(name, problem="empty answer")
    best = _best_definition(normalise_text(response), name)
    if best is None:
        return ExtractedFunction(name, problem="no function of that name")
    if best.function is None:
        return ExtractedFunction(name, code=best.source, problem="does not parse")
    # A star import may bind any name.
    wanted = mentioned_names(best.function) | {"*"}
    future: list[str] = []
    lines: list[str] = []
    imported: set[str] = set()
    for node in best.imports:
        line = ast.unparse(node)
        if is_future(node):
            future.append(line)
        elif binds(node) & wanted:
            imported |= binds(node)
            if line not in lines:
                lines.append(line)
    return ExtractedFunction(
        name,
        code="\n".join([*lines, best.source]),
        future=tuple(future),
        function=best.function,
        imported=frozenset(imported),
        problem="no return value" if best.grade == WITHOUT_VALUE else "",
    )


def extract_preamble(prompt: str, leave_out: frozenset[str]) -> ExtractedFunction:
    """Return the imports and the complete definitions in a problem's text, which a solution may use. Stubs and the
    functions in `leave_out`, which the agents write, are omitted."""
    text = strip_fence(prompt)
    tree = parse(text)
    body: list[ast.stmt] = []
    if tree is None:  # prose around the imports
        body += import_lines(text.split("\n"))
    else:
        body = tree.body
    future: list[str] = []
    pieces: list[str] = []
    for node in body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            lines = future if is_future(node) else pieces
            lines.append(ast.unparse(node))
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            if node.name not in leave_out and without_docstring(node.body):
                pieces.append(source_of(node, text))
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            pieces.append(ast.unparse(node))
    return ExtractedFunction("", "\n".join(pieces), tuple(future))


def strip_fence(response: str) -> str:
    """Return the normalised text without a surrounding markdown fence."""
    text = normalise_text(response).strip()
    fence, *lines = text.split("\n")
    if fence.startswith("```") and "(" not in fence:
        if lines and lines[-1].strip() == "```":
            lines.pop()
        text = "\n".join(lines).strip()
    return text


def parse(text: str) -> ast.Module | None:
    """Return the text's syntax tree, None if it does not parse or is nested too deeply."""
    tree = parse_or_line(text)
    return tree if isinstance(tree, ast.Module) else None


def returns_value(function: ast.FunctionDef) -> bool:
    """Return whether the function has a `return` with an expression, outside of nested scopes."""
    stack: list[ast.AST] = [*function.body]
    while stack:
        node = stack.pop()
        if isinstance(node, ast.Return) and node.value is not None:
            return True
        if not isinstance(node, SCOPES):
            stack += ast.iter_child_nodes(node)
    return False


def without_docstring(body: list[ast.stmt]) -> list[ast.stmt]:
    """Return the statements other than bare constants, such as docstrings, and `pass`."""
    statements = []
    for node in body:
        is_constant = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if not is_constant and not isinstance(node, ast.Pass):
            statements.append(node)
    return statements


def source_of(node: ast.FunctionDef | ast.ClassDef, text: str) -> str:
    """Return the node's lines in `text`, including decorators."""
    return "\n".join(text.split("\n")[first_line(node) - 1 : node.end_lineno])


def first_line(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> int:
    """Return the first line of a definition, including decorators."""
    return min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])


def normalise_text(response: str) -> str:
    """Return the text, cut to MAX_CHARS, with `\\n` newlines, encodable as UTF-8 and without NUL."""
    text = response[:MAX_CHARS]
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    text = text.replace("\0", "\ufffd")  # `ast.parse` raises on NUL
    return text.encode("utf-8", "replace").decode("utf-8")


def parse_or_line(text: str) -> ast.Module | int | None:
    """Return the syntax tree, or the line of the syntax error, or None if the error has no line or the tree is too
    deep."""
    try:
        tree = syntax_tree(text)
    except SyntaxError as error:
        return error.lineno
    except (ValueError, RecursionError, MemoryError, OverflowError):
        return None
    level: list[ast.AST] = [tree]
    for _ in range(MAX_DEPTH):
        below: list[ast.AST] = []
        for node in level:
            below += ast.iter_child_nodes(node)
        if not below:
            return tree
        level = below
    return None


def _best_definition(text: str, name: str) -> _Definition | None:
    """Return the best definition in the text, which is read as one program if it parses, else line by line. Definitions
    on a line with a fence, backtick or list mark are considered only if the lines have no complete function, and only
    if they are complete, because prose often quotes half a definition."""
    program = textwrap.dedent(text).strip()
    tree = parse(program)
    if tree is not None:
        return _of_program(tree, program, name)
    best = _of_lines(text.split("\n"), name)
    if best is None or best.grade != COMPLETE:
        loose = _of_lines(FENCE.sub("\n", LIST_MARK.sub("", text)).split("\n"), name)
        if loose is not None and loose.grade == COMPLETE:
            return loose
    return best


def _of_program(tree: ast.Module, text: str, name: str) -> _Definition | None:
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name]
    if not functions:
        return None
    # `max` returns the first of equals, here the last definition.
    function = max(reversed(functions), key=returns_value)
    grade = COMPLETE if returns_value(function) else WITHOUT_VALUE
    imports = tuple(node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom))
    return _Definition(grade, source_of(function, text), function, imports)


def _of_lines(lines: list[str], name: str) -> _Definition | None:
    """Return the best definition in lines that do not parse. The search runs backwards until a definition is complete
    or MAX_PARSED is used up."""
    best = None
    best_indent = ""
    cost = 0
    for start, indent in reversed(list(_starts(lines, name))):
        definition, parsed = _definition(lines, start, indent, name)
        cost += parsed
        if best is None or definition.grade > best.grade:
            best = definition
            best_indent = indent
        if best.grade == COMPLETE or cost > MAX_PARSED:
            break
    if best is None:
        return None
    # The imports of an indented program are indented as its function is.
    beside = [line.removeprefix(best_indent) for line in lines if line.startswith(best_indent)]
    return replace(best, imports=tuple(import_lines(beside)))


def _starts(lines: list[str], name: str) -> Iterator[tuple[int, str]]:
    """Yield index and indentation of each line that begins the function, decorators included. Methods and nested
    functions do not count."""
    opening = re.compile(rf"def[ \t]+{re.escape(name)}\b")
    above: list[tuple[int, str]] = []
    decorated: int | None = None
    for index, line in enumerate(lines):
        code = line.lstrip(" \t")
        if not code:
            continue
        indent = indentation(line)
        while above and above[-1][0] >= len(indent):
            above.pop()
        is_inner = bool(above) and above[-1][1].startswith(("class ", "def ", "async def "))
        first = index if decorated is None else decorated
        if opening.match(code) and not is_inner:
            yield first, indent
        decorated = first if code.startswith("@") else None
        above.append((len(indent), code))


def _definition(lines: list[str], start: int, indent: str, name: str) -> tuple[_Definition, int]:
    """Return the definition that begins at a line, and the cost of the search. The first attempt is the block by
    indentation. If it does not parse (text in quotes or brackets may have any indentation), the text is cut before the
    line of the error until the rest parses."""
    end = block_end(lines, start, len(indent))
    block = "\n".join(line.removeprefix(indent) for line in lines[start:end]).rstrip()
    text = block
    tree = parse(block)
    is_cut_inside = False
    cost = len(block) + PARSE_COST
    if tree is None:
        rest = [line.removeprefix(indent) for line in lines[start:]]
        while rest and cost < MAX_PARSED:
            text = "\n".join(rest)
            cost += len(text) + PARSE_COST
            tree_or_line = parse_or_line(text)
            if not isinstance(tree_or_line, int):
                tree = tree_or_line
                break
            cut = min(len(rest), max(1, tree_or_line)) - 1
            is_cut_inside = bool(indentation(rest[cut]))
            del rest[cut:]
    definition = None
    if tree is not None:
        definition = _of_program(tree, text, name)
    if definition is None or (is_cut_inside and definition.grade != COMPLETE):
        return _Definition(BROKEN, block), cost
    if is_cut_inside:
        definition = replace(definition, grade=BEGINNING)
    return definition, cost


def block_end(lines: list[str], start: int, width: int) -> int:
    """Return the end of the block, by indentation, that begins at a line with an indentation of `width`."""
    head = True
    for index in range(start, len(lines)):
        code = lines[index].lstrip(" \t")
        # Comments and closing brackets at the margin do not end a block.
        if code and code[0] not in "#)]}" and len(indentation(lines[index])) <= width:
            if not head:
                return index
            head = code.startswith("@")
    return len(lines)


def indentation(line: str) -> str:
    """Return the leading white space."""
    return line[: len(line) - len(line.lstrip(" \t"))]


def import_lines(lines: list[str]) -> Iterator[ast.Import | ast.ImportFrom]:
    """Yield the first MAX_IMPORTS imports on lines of their own in text that does not parse."""
    begun = [index for index, line in enumerate(lines) if line.startswith(("import ", "from "))]
    for index in begun[:MAX_IMPORTS]:
        line = lines[index]
        if "(" in line and ")" not in line:
            line = "\n".join(lines[index : index + MAX_IMPORTS]).partition(")")[0] + ")"
        tree = parse(line)
        if tree is None:
            continue  # prose
        for node in tree.body:
            if isinstance(node, ast.Import | ast.ImportFrom):
                yield node


def mentioned_names(function: ast.FunctionDef) -> set[str]:
    return {node.id for node in ast.walk(function) if isinstance(node, ast.Name)}


def binds(node: ast.Import | ast.ImportFrom) -> set[str]:
    """Return the names that an import binds, `*` for a star import."""
    return {alias.asname or alias.name.split(".")[0] for alias in node.names}


def is_future(node: ast.Import | ast.ImportFrom) -> bool:
    """Return whether a statement is a `from __future__` import, which goes first in a program."""
    return isinstance(node, ast.ImportFrom) and node.module == "__future__"
