"""Source to syntax tree."""

from __future__ import annotations

import ast
import threading
from types import CodeType

_ONE_AT_A_TIME = threading.RLock()


def parse(source: str) -> ast.Module:
    """`ast.parse`, from any thread.

    Until Python 3.13 all threads count how deep they are in one place, and two that convert trees at the same time may
    get `SystemError: AST constructor recursion depth mismatch`.
    """
    with _ONE_AT_A_TIME:
        return ast.parse(source)


def compiled(statements: list[ast.stmt], name: str) -> CodeType:
    """Statements as code, from any thread; `name` stands for the file's."""
    with _ONE_AT_A_TIME:
        return compile(ast.Module(statements, []), name, "exec", dont_inherit=True)
