"""From a response to the code it contributes: the function that was asked for, and its imports, by `ast`.

Responses are untrusted text. Nothing here runs them, and nothing here raises on them: what is too long is
cut, what cannot be parsed, or is nested too deeply, counts as not parsing.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

MAX_CHARS = 32_000
"""Longer responses are cut. Some 8,000 tokens, far above any function."""
MAX_DEPTH = 200
"""Syntax trees nested deeper than this count as not parsing, so that recursion over a tree is safe."""
MAX_CUTS = 32
"""How many shorter prefixes are tried before a response counts as not parsing."""

SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


@dataclass(frozen=True, slots=True)
class Contribution:
    """What one response brings to the joint program.

    `code` is its imports and its function; or the whole text, where that does not parse and no function could
    be made out in it, so that the program's syntax error is the agent's own. `future` are its
    `from __future__` imports, which have to stand first in the program. `imported` are the names its other
    imports bind. `problem` is empty when the function is there and returns a value.
    """

    name: str
    code: str = ""
    future: tuple[str, ...] = ()
    function: ast.FunctionDef | None = None
    imported: frozenset[str] = frozenset()
    problem: str = ""

    @property
    def defined(self) -> bool:
        return not self.problem


@lru_cache(maxsize=512)
def contribution(response: str, name: str) -> Contribution:
    """The contribution of a response that was asked for the function `name`."""
    text = clean(response)
    if not text:
        return Contribution(name, problem="empty answer")
    tree = parse(text)
    if tree is not None:
        imports = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
        function, chunk = _last_function(tree, name), text
    else:
        imports = list(_import_lines(text))
        function, chunk = _from_broken(text, name)
        if function is None:
            return Contribution(name, code=text, problem="does not parse")
    future = tuple(ast.unparse(node) for node in imports if _is_future(node))
    imports = [node for node in imports if not _is_future(node)]
    pieces = [ast.unparse(node) for node in imports]
    if function is None:
        problem = "no function of that name"
    else:
        pieces.append(source_of(function, chunk))
        problem = "" if returns_value(function) else "no return value"
    bound = frozenset(alias.asname or alias.name.split(".")[0] for node in imports for alias in node.names)
    return Contribution(name, "\n".join(pieces), future, function, bound, problem)


def preamble(prompt: str, leave_out: frozenset[str]) -> Contribution:
    """What a problem's own text gives to the joint program: its imports and its complete definitions.

    Some problems come with finished functions or constants that a solution may use. Functions of the names in
    `leave_out` (those the agents write) and mere stubs are not taken.
    """
    text = clean(prompt)
    tree = parse(text)
    body = list(_import_lines(text)) if tree is None else tree.body
    future: list[str] = []
    pieces: list[str] = []
    for node in body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            (future if _is_future(node) else pieces).append(ast.unparse(node))
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            if node.name not in leave_out and without_docstring(node.body):
                pieces.append(source_of(node, text))
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            pieces.append(ast.unparse(node))
    return Contribution("", "\n".join(pieces), tuple(future))


def clean(response: str) -> str:
    """The text without a surrounding markdown fence, with plain newlines, encodable as UTF-8, without NUL."""
    text = response[:MAX_CHARS].replace("\r\n", "\n").replace("\r", "\n").replace("\0", "\ufffd")
    text = text.encode("utf-8", "replace").decode("utf-8").strip()
    if text.startswith("```"):
        lines = text.split("\n")[1:]
        if lines and lines[-1].strip() == "```":
            lines.pop()
        text = "\n".join(lines).strip()
    return text


def parse(text: str) -> ast.Module | None:
    """The text's syntax tree; None when it does not parse or is nested too deeply to look at."""
    tree = _parse(text)
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


def _parse(text: str) -> ast.Module | int | None:
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


def _last_function(tree: ast.Module, name: str) -> ast.FunctionDef | None:
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name]
    return functions[-1] if functions else None


def _from_broken(text: str, name: str) -> tuple[ast.FunctionDef | None, str]:
    """The function in text that does not parse as a whole, with the part of the text that holds it.

    From each line that opens `def name(`, the last first, the longest prefix that parses is sought: the line
    of the error and what follows it are cut off until the rest parses.
    """
    lines = text.split("\n")
    starts = [index for index, line in enumerate(lines) if line.startswith((f"def {name}(", f"def {name} ("))]
    cuts = 0
    for start in reversed(starts):
        end = len(lines)
        while end > start and cuts < MAX_CUTS:
            chunk = "\n".join(lines[start:end])
            found = _parse(chunk)
            if isinstance(found, ast.Module):
                return _last_function(found, name), chunk
            cuts += 1
            if found is None:
                break
            end = min(end - 1, start + found - 1)
    return None, ""


def _import_lines(text: str) -> Iterator[ast.Import | ast.ImportFrom]:
    """Imports that stand on a line of their own in text that does not parse."""
    for line in text.split("\n"):
        if line.startswith(("import ", "from ")):
            tree = parse(line)
            if tree is not None and isinstance(node := tree.body[0], ast.Import | ast.ImportFrom):
                yield node


def _is_future(node: ast.Import | ast.ImportFrom) -> bool:
    return isinstance(node, ast.ImportFrom) and node.module == "__future__"
