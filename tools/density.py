"""Measure how much a line of the package holds, so that it stays readable.

    python -m tools.density               all packages, the spine, the core and the sum
    python -m tools.density marl_ray/credit   the files of one folder, densest first

A line of code is a line with a token that is neither a comment nor a docstring. Per 100 lines of code the table has
comprehensions, conditional expressions, assignments of unrelated values (`a, b = x, y`) and comments; and the mean
length of a line of code without its indentation. `tests/test_density.py` holds the limits.
"""

from __future__ import annotations

import argparse
import ast
import io
import tokenize
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent / "marl_ray"
SPINE = ("core", "rollout", "credit", "learning", "weights", "actors", "trainer")
"""Packages through which a completion becomes a gradient."""
APART = ("plugins", "sandbox")
"""Packages that are no part of the core: it works without plug-ins, and the sandbox without the core."""
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
LAYOUT = (tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER, tokenize.COMMENT)


@dataclass
class Density:
    """Counts of one file or of several."""

    files: int = 0
    lines: int = 0
    """Lines of code."""
    characters: int = 0
    """Characters of code, without indentation, comments and docstrings."""
    comprehensions: int = 0
    conditionals: int = 0
    """Conditional expressions."""
    pairs: int = 0
    """Assignments of several values that are listed one by one."""
    comments: int = 0

    def __add__(self, other: Density) -> Density:
        total = Density()
        for name in vars(total):
            setattr(total, name, getattr(self, name) + getattr(other, name))
        return total

    def per_hundred(self, count: int) -> float:
        """Return a count per 100 lines of code."""
        return 100 * count / max(self.lines, 1)

    @property
    def line_length(self) -> float:
        """Mean number of characters of a line of code."""
        return self.characters / max(self.lines, 1)


def measure(path: Path) -> Density:
    """Return the counts of a Python file."""
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    found = Density(files=1)
    for node in ast.walk(tree):
        if isinstance(node, COMPREHENSIONS):
            found.comprehensions += 1
        elif isinstance(node, ast.IfExp):
            found.conditionals += 1
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple):
            found.pairs += isinstance(node.value, ast.Tuple)
    docstrings = _docstring_lines(tree)
    lines = text.splitlines()
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            found.comments += 1
        if token.type not in LAYOUT:
            code.update(range(token.start[0], token.end[0] + 1))
    for number in code - docstrings:
        found.lines += 1
        found.characters += len(lines[number - 1].strip())
    return found


def _docstring_lines(tree: ast.Module) -> set[int]:
    """Return the numbers of the lines of all docstrings, docstrings of attributes included."""
    numbers: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            numbers.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return numbers


def measure_all(paths: Iterable[Path]) -> Density:
    """Return the sum of the counts of all Python files below the paths."""
    total = Density()
    for path in paths:
        files = [path] if path.is_file() else sorted(path.rglob("*.py"))
        for file in files:
            total += measure(file)
    return total


def spine() -> Density:
    """Return the counts of the spine."""
    return measure_all(PACKAGE / name for name in SPINE)


def core() -> Density:
    """Return the counts of the core."""
    return measure_all(path for path in sorted(PACKAGE.iterdir()) if path.name not in APART)


def _row(name: str, found: Density) -> str:
    columns = (
        f"{found.files:6}",
        f"{found.lines:7}",
        f"{found.characters / 1000:8.1f}",
        f"{found.per_hundred(found.comprehensions):6.2f}",
        f"{found.per_hundred(found.conditionals):6.2f}",
        f"{found.per_hundred(found.pairs):6.2f}",
        f"{found.per_hundred(found.comments):6.2f}",
        f"{found.line_length:6.1f}",
    )
    return f"{name:34}{''.join(columns)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?", help="list the files of this folder")
    folder = parser.parse_args().folder
    print(f"{'':34} files  lines kilochar  compr  cond  pairs comments chars/line")
    if folder is not None:
        files = [(path, measure(path)) for path in sorted(folder.rglob("*.py"))]
        files.sort(key=lambda row: -row[1].per_hundred(row[1].comprehensions + row[1].conditionals))
        for path, found in files:
            print(_row(str(path.relative_to(folder)), found))
        print(_row("sum", measure_all([folder])))
        return
    for path in sorted(PACKAGE.iterdir()):
        if path.is_dir() and (path / "__init__.py").exists():
            print(_row(path.name, measure_all([path])))
    print(_row("spine", spine()))
    print(_row("core", core()))
    print(_row("all", measure_all([PACKAGE])))


if __name__ == "__main__":
    main()
