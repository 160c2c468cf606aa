"""From a response to the code it contributes: the function that was asked for, and its imports, by `ast`.

Only that function enters the joint program. The prompts ask for it alone, so other functions, classes, constants
and calls beside it are left out; a function that needs them fails its tests. Of the response's imports those
come along that bind a name the function mentions. Text around it, markdown fences, list items and indentation
are seen through.

Where a response defines the function more than once, the best definition is taken, the last among equals:

1. whole, and returns a value;
2. broken, but with a beginning that parses and returns a value already (what a token limit leaves): that beginning;
3. whole, without returning a value;
4. broken: its lines go into the program as they are, so that the program's syntax error is its author's own.

A response without such a definition brings nothing into the program.

Responses are untrusted text. Nothing here runs them, and nothing here raises on them: what is too long is
cut, and what cannot be parsed, or is nested too deeply, counts as not parsing.
"""

from __future__ import annotations

import ast
import re
import textwrap
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace

MAX_CHARS = 32_000
"""Longer responses are cut. Some 8,000 tokens, far above any function."""
MAX_DEPTH = 200
"""Syntax trees nested deeper than this count as not parsing, so that recursion over a tree is safe."""
MAX_PARSED = 8 * MAX_CHARS
"""How many characters are parsed in search of one function, each attempt counted as PARSE_COST more."""
PARSE_COST = 100
MAX_IMPORTS = 64
"""How many import lines of a text that is no program are looked at, and how many lines one of them may take."""

SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
WHOLE, BEGINNING, WITHOUT_VALUE, BROKEN = 3, 2, 1, 0
"""How good a definition is; see the module."""

FENCE = re.compile(r"(?:`+|~~~+)[ \t]*(?:[Pp]ython\d?\b|py\b)?[ \t]*")
LIST_MARK = re.compile(r"(?m)^[ \t]*(?:[-*+>]|\d{1,3}[.)])[ \t]+(?=(?:def|from|import|@)\b)")


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Contribution:
    """What one response brings to the joint program.

    `code` is its imports and its function; or a broken definition as it was written; or nothing. `function` is
    the tree of what `code` defines, None when that is broken or missing. `future` are its `from __future__`
    imports, which have to stand first in the program. `imported` are the names its other imports bind.
    `problem` is empty when the function is there and returns a value.
    """

    name: str
    code: str = ""
    future: tuple[str, ...] = ()
    function: ast.FunctionDef | None = None
    imported: frozenset[str] = frozenset()
    problem: str = ""

    @property
    def defined(self) -> bool:
        """The function is there and returns a value."""
        return not self.problem

    @property
    def exists(self) -> bool:
        """The function is there."""
        return self.function is not None

    def mentions(self, name: str) -> bool:
        """Whether the function reads or binds a variable of that name."""
        return self.function is not None and name in _mentioned(self.function)


@dataclass(frozen=True, slots=True)
class _Definition:
    """One definition of the function: how good, its lines, its tree (None: broken), and the imports around it."""

    grade: int
    source: str
    function: ast.FunctionDef | None = None
    imports: tuple[ast.Import | ast.ImportFrom, ...] = ()


def contribution(response: str, name: str) -> Contribution:
    """The contribution of a response that was asked for the function `name`."""
    if not clean(response):
        return Contribution(name, problem="empty answer")
    best = _best_definition(plain(response), name)
    if best is None:
        return Contribution(name, problem="no function of that name")
    if best.function is None:
        return Contribution(name, code=best.source, problem="does not parse")
    mentioned = _mentioned(best.function)
    future = tuple(ast.unparse(node) for node in best.imports if is_future(node))
    imports = [node for node in best.imports if not is_future(node) and binds(node) & (mentioned | {"*"})]
    code = "\n".join([*dict.fromkeys(ast.unparse(node) for node in imports), best.source])
    bound = frozenset(name for node in imports for name in binds(node))
    problem = "no return value" if best.grade == WITHOUT_VALUE else ""
    return Contribution(name, code, future, best.function, bound, problem)


def preamble(prompt: str, leave_out: frozenset[str]) -> Contribution:
    """What a problem's own text gives to the joint program: its imports and its complete definitions.

    Some problems come with finished functions or constants that a solution may use. Functions of the names in
    `leave_out` (those the agents write) and mere stubs are not taken.
    """
    text = clean(prompt)
    tree = parse(text)
    body = list(import_lines(text.split("\n"))) if tree is None else tree.body
    future: list[str] = []
    pieces: list[str] = []
    for node in body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            (future if is_future(node) else pieces).append(ast.unparse(node))
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            if node.name not in leave_out and without_docstring(node.body):
                pieces.append(source_of(node, text))
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            pieces.append(ast.unparse(node))
    return Contribution("", "\n".join(pieces), tuple(future))


def clean(response: str) -> str:
    """The text without a surrounding markdown fence, with plain newlines, encodable as UTF-8, without NUL."""
    text = plain(response).strip()
    fence, *lines = text.split("\n")
    if fence.startswith("```") and "(" not in fence:
        if lines and lines[-1].strip() == "```":
            lines.pop()
        text = "\n".join(lines).strip()
    return text


def parse(text: str) -> ast.Module | None:
    """The text's syntax tree; None when it does not parse or is nested too deeply to look at."""
    tree = parse_or_line(text)
    return tree if isinstance(tree, ast.Module) else None


def returns_value(function: ast.FunctionDef) -> bool:
    """Whether the function's own body, nested functions aside, has a `return` with an expression."""
    return any(isinstance(node, ast.Return) and node.value is not None for node in own_nodes(function.body))


def own_nodes(nodes: list[ast.stmt] | list[ast.AST]) -> Iterator[ast.AST]:
    """All nodes below `nodes`, each nested scope (function, class, lambda) given but not entered."""
    stack: list[ast.AST] = list(nodes)
    while stack:
        node = stack.pop()
        yield node
        if not isinstance(node, SCOPES):
            stack.extend(ast.iter_child_nodes(node))


def without_docstring(body: list[ast.stmt]) -> list[ast.stmt]:
    """The statements that do something: no docstring or other bare constant, no `pass`."""
    return [
        node
        for node in body
        if not isinstance(node, ast.Pass) and not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
    ]


def source_of(node: ast.FunctionDef | ast.ClassDef, text: str) -> str:
    """The node's lines in `text`, decorators included."""
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    return "\n".join(text.split("\n")[first - 1 : node.end_lineno])


def plain(response: str) -> str:
    """The text, cut to MAX_CHARS, with plain newlines, encodable as UTF-8, without NUL."""
    text = response[:MAX_CHARS].replace("\r\n", "\n").replace("\r", "\n").replace("\0", "\ufffd")
    return text.encode("utf-8", "replace").decode("utf-8")


def parse_or_line(text: str) -> ast.Module | int | None:
    """The tree, or the line of the error, or None when there is no such line."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
    except SyntaxError as error:
        return error.lineno
    except (ValueError, RecursionError, MemoryError, OverflowError):
        return None
    return tree if _depth_is_bounded(tree) else None


def _depth_is_bounded(tree: ast.AST) -> bool:
    level: list[ast.AST] = [tree]
    for _ in range(MAX_DEPTH):
        level = [child for node in level for child in ast.iter_child_nodes(node)]
        if not level:
            return True
    return False


def _best_definition(text: str, name: str) -> _Definition | None:
    """The best definition in the text: of the text as one program if it is one, else of its lines.

    What stands on one line with a fence, a backtick or a list mark is only looked for where the lines have no
    whole function. Prose quotes half a definition often, so that only whole ones are taken from there.
    """
    program = textwrap.dedent(text).strip()
    tree = parse(program)
    if tree is not None:
        return _of_program(tree, program, name)
    best = _of_lines(text.split("\n"), name)
    if best is None or best.grade != WHOLE:
        loose = _of_lines(FENCE.sub("\n", LIST_MARK.sub("", text)).split("\n"), name)
        if loose is not None and loose.grade == WHOLE:
            return loose
    return best


def _of_program(tree: ast.Module, text: str, name: str) -> _Definition | None:
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name]
    if not functions:
        return None
    function = max(reversed(functions), key=returns_value)
    imports = tuple(node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom))
    return _Definition(
        WHOLE if returns_value(function) else WITHOUT_VALUE, source_of(function, text), function, imports
    )


def _of_lines(lines: list[str], name: str) -> _Definition | None:
    """The best definition in lines that are no program: the last first, until one is whole or MAX_PARSED is
    used up."""
    best, level, cost = None, "", 0
    for start, indent in reversed(list(_starts(lines, name))):
        definition, parsed = _definition(lines, start, indent, name)
        cost += parsed
        if best is None or definition.grade > best.grade:
            best, level = definition, indent
        if best.grade == WHOLE or cost > MAX_PARSED:
            break
    if best is None:
        return None
    imports = import_lines([line.removeprefix(level) for line in lines if line.startswith(level)])
    return replace(best, imports=tuple(imports))


def _starts(lines: list[str], name: str) -> Iterator[tuple[int, str]]:
    """Index and indentation of each line that begins the function, decorators included; no methods, no inner
    functions."""
    opening = re.compile(rf"def[ \t]+{re.escape(name)}\b")
    above: list[tuple[int, str]] = []
    decorated: int | None = None
    for index, line in enumerate(lines):
        code = line.lstrip(" \t")
        if not code:
            continue
        indent = line[: len(line) - len(code)]
        while above and above[-1][0] >= len(indent):
            above.pop()
        inner = bool(above) and above[-1][1].startswith(("class ", "def ", "async def "))
        if opening.match(code) and not inner:
            yield (index if decorated is None else decorated), indent
        if not code.startswith("@"):
            decorated = None
        elif decorated is None:
            decorated = index
        above.append((len(indent), code))


def _definition(lines: list[str], start: int, indent: str, name: str) -> tuple[_Definition, int]:
    """The definition that begins at a line, and what the search for it cost.

    First its block by indentation is tried. Where that does not parse (text in quotes or brackets may stand
    anywhere), the line of the error and what follows it are cut off until the rest parses.
    """
    end = block_end(lines, start, len(indent))
    own = "\n".join(line.removeprefix(indent) for line in lines[start:end]).rstrip()
    tree, text, inside = parse(own), own, False
    cost = len(own) + PARSE_COST
    if tree is None:
        rest = [line.removeprefix(indent) for line in lines[start:]]
        while rest and cost < MAX_PARSED:
            text = "\n".join(rest)
            cost += len(text) + PARSE_COST
            found = parse_or_line(text)
            if isinstance(found, ast.Module):
                tree = found
                break
            if found is None:
                break
            cut = min(len(rest), max(1, found)) - 1
            inside = indentation(rest[cut]) > 0
            del rest[cut:]
    definition = None if tree is None else _of_program(tree, text, name)
    if definition is None or (inside and definition.grade != WHOLE):
        return _Definition(BROKEN, own), cost
    return (replace(definition, grade=BEGINNING) if inside else definition), cost


def block_end(lines: list[str], start: int, width: int) -> int:
    """Where the block that begins at a line of that indentation ends, judged by indentation."""
    head = True
    for index in range(start, len(lines)):
        code = lines[index].lstrip(" \t")
        if code and code[0] not in "#)]}" and indentation(lines[index]) <= width:
            if not head:
                return index
            head = code.startswith("@")
    return len(lines)


def indentation(line: str) -> int:
    """How many characters of white space a line begins with."""
    return len(line) - len(line.lstrip(" \t"))


def import_lines(lines: list[str]) -> Iterator[ast.Import | ast.ImportFrom]:
    """Imports that stand on lines of their own in text that does not parse; the first MAX_IMPORTS."""
    begun = [index for index, line in enumerate(lines) if line.startswith(("import ", "from "))]
    for index in begun[:MAX_IMPORTS]:
        line = lines[index]
        if "(" in line and ")" not in line:
            line = "\n".join(lines[index : index + MAX_IMPORTS]).partition(")")[0] + ")"
        tree = parse(line)
        yield from (node for node in (tree.body if tree else []) if isinstance(node, ast.Import | ast.ImportFrom))


def _mentioned(function: ast.FunctionDef) -> set[str]:
    return {node.id for node in ast.walk(function) if isinstance(node, ast.Name)}


def binds(node: ast.Import | ast.ImportFrom) -> set[str]:
    """The names that an import binds; `*` for all of a module."""
    return {alias.asname or alias.name.split(".")[0] for alias in node.names}


def is_future(node: ast.Import | ast.ImportFrom) -> bool:
    """Whether it is a `from __future__` import, which has to stand first in a program."""
    return isinstance(node, ast.ImportFrom) and node.module == "__future__"
