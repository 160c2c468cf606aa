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
from collections.abc import Iterator, Mapping
from typing import Any

from marl_ray.core.episode import Task
from marl_ray.core.errors import UserError
from marl_ray.data.convert import Conversion, id_of, lines_of, text_of
from marl_ray.data.loading import DataRow
from marl_ray.environments.code_generation.extraction import first_line, parse
from marl_ray.plugins.code_completion.skeleton import FunctionNode, class_in, is_stub, methods_of, parse_skeleton
from marl_ray.sandbox import count_tests

PLAIN_QUOTES = str.maketrans("“”„‟‘’‚‛", "\"\"\"\"''''")
"""Typographic quotation marks with their plain ones."""


def _task(row: DataRow, number: int) -> Task:
    """Convert a row with the fields class_name, skeleton and test. ClassEval's fields import_statement, methods_info
    and solution_code are optional. Without methods_info, the methods without a body are to be written."""
    task_id = id_of(row, "classeval", number)
    name, tests = text_of(row, "class_name"), text_of(row, "test")
    if not name.isidentifier() or keyword.iskeyword(name):
        raise UserError(f"task {task_id} has no class name (field class_name)")
    if not tests:
        raise UserError(f"task {task_id} has no tests (field test)")
    if not text_of(row, "skeleton"):
        raise UserError(f"task {task_id} has no class to complete (field skeleton)")
    try:
        count_tests(tests, name)
        skeleton = _completed(_skeleton(row, name), methods_of_solution(row), name, tests)
        methods = _to_write(row, skeleton, name)
        parse_skeleton(skeleton, name, tuple(methods), tuple(methods.values()))
    except ValueError as error:
        raise UserError(f"task {task_id}: {error}") from None
    fields = {"class_name": name, "tests": tests, "methods": tuple(methods), "lengths": tuple(methods.values())}
    return Task(task_id, skeleton, fields)


CLASSEVAL = Conversion("code_completion", _task)


def _skeleton(row: DataRow, name: str) -> str:
    """Return the repaired skeleton with the row's imports, or for `class_in` to reject the row's own."""
    named = {text_of(info, "method_name") for info in _methods_info(row)}
    source = next((text for text in _repairs(row, name) if _defines(text, name, named)), text_of(row, "skeleton"))
    tree = parse(source)
    if tree is None or "import_statement" not in row:
        return source
    lines = source.split("\n")
    for node in tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            lines[node.lineno - 1 : node.end_lineno] = [""] * ((node.end_lineno or node.lineno) - node.lineno + 1)
    imports = lines_of(row, "import_statement")
    return "\n".join([*imports, *[""] * bool(imports), "\n".join(lines).strip("\n")]) + "\n"


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
    quotes = ('"""', "'''", '"', "'")
    quote = next((quote for quote in quotes if text.startswith(quote) and text.endswith(quote)), "")
    return text[len(quote) : len(text) - len(quote)]


def _defines(source: str, name: str, methods: set[str]) -> bool:
    """Return whether a module defines the class with these methods."""
    try:
        return methods <= {method.name for method in methods_of(class_in(source, name))}
    except ValueError:
        return False


def _from_parts(row: DataRow, name: str) -> str:
    """Return a skeleton from class_description, class_constructor and the descriptions in methods_info."""
    _, _, constructor = text_of(row, "class_constructor").partition("\n")
    parts = [f"class {name}:", text_of(row, "class_description").rstrip(), constructor.rstrip()]
    for info in _methods_info(row):
        description = f"    {text_of(info, 'method_description').strip()}"
        if parse(f"class _:\n{description.translate(PLAIN_QUOTES)}") is None:
            description += '\n        """'
        parts.append(f"\n{description}")
    return "\n".join(parts) + "\n"


def _completed(skeleton: str, solution: Mapping[str, str], name: str, tests: str) -> str:
    """Return the skeleton with the solution's methods that the tests call and the skeleton lacks."""
    node = class_in(skeleton, name)
    existing = {method.name for method in methods_of(node)}
    called = {part.attr for part in ast.walk(ast.parse(tests)) if isinstance(part, ast.Attribute)}
    given = [code for method, code in solution.items() if method in called - existing]
    lines = skeleton.split("\n")
    lines[node.end_lineno : node.end_lineno] = [line for code in given for line in ["", *code.split("\n")]]
    return "\n".join(lines)


def methods_of_solution(row: DataRow) -> dict[str, str]:
    """Return the sources of the reference's methods by name, empty without a reference."""
    source, name = text_of(row, "solution_code"), text_of(row, "class_name")
    if parse(source) is None or f"class {name}" not in source:
        return {}
    return {method.name: _source(method, source) for method in methods_of(class_in(source, name))}


def _to_write(row: DataRow, skeleton: str, name: str) -> dict[str, int]:
    """Return the methods to write with their lengths in characters, in the reference or else in the skeleton."""
    solution = methods_of_solution(row)
    named = {text_of(info, "method_name") for info in _methods_info(row)}
    members = methods_of(class_in(skeleton, name))
    methods = [m for m in members if (m.name in named if named else is_stub(m))]
    missing = sorted(named - {member.name for member in methods})
    if missing:
        raise ValueError(f"the skeleton has no method {missing[0]} (field methods_info)")
    return {m.name: len(solution.get(m.name, "") or _source(m, skeleton)) for m in methods}


def _methods_info(row: DataRow) -> list[Mapping[str, Any]]:
    """Return one mapping per method. Some readers of the dataset return one mapping of lists instead."""
    infos = row.get("methods_info")
    if isinstance(infos, Mapping):
        columns = {field: values for field, values in infos.items() if isinstance(values, list | tuple)}
        return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=False)]
    return [info for info in infos if isinstance(info, Mapping)] if isinstance(infos, list | tuple) else []


def _source(method: FunctionNode, source: str) -> str:
    return "\n".join(source.split("\n")[first_line(method) - 1 : method.end_lineno])
