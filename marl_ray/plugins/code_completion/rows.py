"""ClassEval's rows (FudanSELab/ClassEval; Du et al., "ClassEval: A Manually-Crafted Benchmark for Evaluating LLMs on
Class-level Code Generation", 2023), from the hub or a local file: a class to complete, and its unittest classes.

Errors of the dataset are repaired, so that every task can be solved from its text:

- A skeleton gets the imports of its solution (field import_statement).
- A skeleton in a second pair of quotes or with typographic quotation marks gets plain ones.
- A skeleton that still does not define the class with all its methods is rebuilt from the row's other fields, with open
  docstrings closed.
- A method that the tests call and the skeleton lacks is copied from the solution.
"""

from __future__ import annotations

import ast
import contextlib
import keyword
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from marl_ray.core.episode import Task
from marl_ray.core.errors import UserError
from marl_ray.data.convert import Conversion, id_of, lines_of, text_of
from marl_ray.data.loading import DataRow
from marl_ray.environments.code_generation.extraction import first_line, parse
from marl_ray.plugins.code_completion.skeleton import (
    FunctionNode,
    attributes_in,
    class_in,
    is_stub,
    methods_of,
    parse_skeleton,
)
from marl_ray.sandbox import count_tests, syntax_tree

PLAIN_QUOTES = str.maketrans("“”„‟‘’‚‛", "\"\"\"\"''''")
"""Typographic quotation marks with their plain ones."""


def _task(row: DataRow, number: int) -> Task:
    """Convert a row with the fields class_name, skeleton and test. ClassEval's fields import_statement, methods_info
    and solution_code are optional. Without methods_info, the methods without a body are to be written."""
    task_id = id_of(row, "classeval", number)
    name = text_of(row, "class_name")
    tests = text_of(row, "test")
    if not name.isidentifier() or keyword.iskeyword(name):
        raise UserError(f"task {task_id} has no class name (field class_name)")
    if not tests:
        raise UserError(f"task {task_id} has no tests (field test)")
    if not text_of(row, "skeleton"):
        raise UserError(f"task {task_id} has no class to complete (field skeleton)")
    try:
        count_tests(tests, name)
        skeleton = _completed(_skeleton(row, name), methods_of_solution(row), name, tests)
        length_by_method = _to_write(row, skeleton, name)
        methods = tuple(length_by_method)
        lengths = tuple(length_by_method.values())
        parse_skeleton(skeleton, name, methods, lengths)
    except ValueError as error:
        raise UserError(f"task {task_id}: {error}") from None
    fields = {
        "class_name": name,
        "tests": tests,
        "methods": methods,
        "lengths": lengths,
    }
    return Task(task_id, skeleton, fields)


CLASSEVAL = Conversion("code_completion", _task)


def _skeleton(row: DataRow, name: str) -> str:
    """Return the repaired skeleton with the row's imports, or for `class_in` to reject the row's own."""
    source = text_of(row, "skeleton")
    for repaired in _repairs(row, name):
        if _defines(repaired, name, _named_methods(row)):
            source = repaired
            break
    tree = parse(source)
    if tree is None or "import_statement" not in row:
        return source
    lines = source.split("\n")
    for node in tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            # Blank lines in their place keep the numbers of all other lines.
            for number in range(node.lineno, (node.end_lineno or node.lineno) + 1):
                lines[number - 1] = ""
    code = "\n".join(lines).strip("\n")
    imports = lines_of(row, "import_statement")
    if imports:
        return "\n".join([*imports, "", code]) + "\n"
    return f"{code}\n"


def _repairs(row: DataRow, name: str) -> Iterator[str]:
    """Yield the row's skeleton and repaired skeletons, the closest to the original first."""
    source = text_of(row, "skeleton")
    unquoted = _without_quotes(source.strip())
    yield from (source, unquoted, source.translate(PLAIN_QUOTES), unquoted.translate(PLAIN_QUOTES))
    rebuilt = _from_parts(row, name)
    yield from (rebuilt, rebuilt.translate(PLAIN_QUOTES))


def _without_quotes(text: str) -> str:
    """Return the content of a quoted text, whose quotes may be escaped or not."""
    with contextlib.suppress(ValueError, SyntaxError, MemoryError, RecursionError):
        value = ast.literal_eval(text)
        return value if isinstance(value, str) else text
    for quote in ('"""', "'''", '"', "'"):
        if text.startswith(quote) and text.endswith(quote):
            return text[len(quote) : len(text) - len(quote)]
    return text


def _defines(source: str, name: str, methods: set[str]) -> bool:
    """Return whether a module defines the class with these methods."""
    try:
        node = class_in(source, name)
    except ValueError:
        return False
    return methods <= _names(methods_of(node))


def _from_parts(row: DataRow, name: str) -> str:
    """Return a skeleton from class_description, class_constructor and the descriptions in methods_info."""
    _, _, constructor = text_of(row, "class_constructor").partition("\n")
    description = text_of(row, "class_description")
    parts = [f"class {name}:", description.rstrip(), constructor.rstrip()]
    for info in _methods_info(row):
        description = f"    {text_of(info, 'method_description').strip()}"
        if parse(f"class _:\n{description.translate(PLAIN_QUOTES)}") is None:
            description += '\n        """'
        parts.append(f"\n{description}")
    return "\n".join(parts) + "\n"


def _completed(skeleton: str, solution: Mapping[str, str], name: str, tests: str) -> str:
    """Return the skeleton with the solution's methods that the tests call and the skeleton lacks."""
    node = class_in(skeleton, name)
    existing = _names(methods_of(node))
    lacking = attributes_in(syntax_tree(tests)) - existing
    added = []
    for method, code in solution.items():
        if method in lacking:
            added += ["", *code.split("\n")]
    lines = skeleton.split("\n")
    lines[node.end_lineno : node.end_lineno] = added
    return "\n".join(lines)


def methods_of_solution(row: DataRow) -> dict[str, str]:
    """Return the sources of the reference's methods by name, empty without a reference."""
    source = text_of(row, "solution_code")
    name = text_of(row, "class_name")
    if parse(source) is None or f"class {name}" not in source:
        return {}
    return {method.name: _source(method, source) for method in methods_of(class_in(source, name))}


def _to_write(row: DataRow, skeleton: str, name: str) -> dict[str, int]:
    """Return the methods to write with their lengths in characters, in the reference or else in the skeleton."""
    solution = methods_of_solution(row)
    named = _named_methods(row)
    members = methods_of(class_in(skeleton, name))
    missing = sorted(named - _names(members))
    if missing:
        raise ValueError(f"the skeleton has no method {missing[0]} (field methods_info)")
    lengths = {}
    for method in members:
        is_open = method.name in named if named else is_stub(method)
        if is_open:
            code = solution.get(method.name, "") or _source(method, skeleton)
            lengths[method.name] = len(code)
    return lengths


def _names(methods: Iterable[FunctionNode]) -> set[str]:
    return {method.name for method in methods}


def _named_methods(row: DataRow) -> set[str]:
    """Return the names of the methods in methods_info."""
    return {text_of(info, "method_name") for info in _methods_info(row)}


def _methods_info(row: DataRow) -> list[Mapping[str, Any]]:
    """Return one mapping per method. Some readers of the dataset return one mapping of lists instead."""
    infos = row.get("methods_info")
    if isinstance(infos, Mapping):
        columns = {field: values for field, values in infos.items() if isinstance(values, list | tuple)}
        rows = zip(*columns.values(), strict=False)
        return [dict(zip(columns, values, strict=True)) for values in rows]
    if not isinstance(infos, list | tuple):
        return []
    methods = []
    for info in infos:
        if isinstance(info, Mapping):
            methods.append(info)
    return methods


def _source(method: FunctionNode, source: str) -> str:
    return "\n".join(source.split("\n")[first_line(method) - 1 : method.end_lineno])
