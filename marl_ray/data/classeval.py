"""ClassEval's rows (FudanSELab/ClassEval; Du et al., "ClassEval: A Manually-Crafted Benchmark for Evaluating LLMs on
Class-level Code Generation", 2023), from the hub or a local file: a class to complete, and its unittest classes.

The data set's own slips are mended here, so that a task can be solved as it is told:

- a skeleton whose imports are not those of its solution gets these (field import_statement);
- a skeleton that does not parse is put together from the row's other fields, open docstrings closed;
- a method that the tests call and the skeleton does not have is given, from the solution.
"""

from __future__ import annotations

import ast
import keyword
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from marl_ray.core.episode import Task
from marl_ray.core.errors import UserError
from marl_ray.data.convert import id_of, lines_of, text_of
from marl_ray.data.tables import DataRow
from marl_ray.environments.code_completion.skeleton import (
    FunctionNode,
    class_in,
    first_line,
    is_stub,
    methods_of,
    parse_skeleton,
)
from marl_ray.environments.code_generation.extraction import parse
from marl_ray.sandbox import count_tests


@dataclass(frozen=True, slots=True)
class ClassEval:
    """Rows with the fields class_name, skeleton and test; import_statement, methods_info and solution_code, which
    ClassEval has too, may be left out. Without methods_info the methods to write are those without a body."""

    environment: str = "code_completion"

    def task(self, row: DataRow, number: int) -> Task:
        """See `DatasetType`."""
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


CLASSEVAL = ClassEval()


def _skeleton(row: DataRow, name: str) -> str:
    """The skeleton with the row's imports. What does not parse is left for `class_in` to name."""
    source = text_of(row, "skeleton")
    tree = parse(source)
    if tree is None:
        source = _from_parts(row, name) or source
        tree = parse(source)
    if tree is None or "import_statement" not in row:
        return source
    lines = source.split("\n")
    for node in tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            lines[node.lineno - 1 : node.end_lineno] = [""] * ((node.end_lineno or node.lineno) - node.lineno + 1)
    imports = lines_of(row, "import_statement")
    return "\n".join([*imports, *[""] * bool(imports), "\n".join(lines).strip("\n")]) + "\n"


def _from_parts(row: DataRow, name: str) -> str:
    """A skeleton from class_description, class_constructor and the descriptions of methods_info."""
    _, _, constructor = text_of(row, "class_constructor").partition("\n")
    parts = [f"class {name}:", text_of(row, "class_description").rstrip(), constructor.rstrip()]
    for info in _methods_info(row):
        description = f"    {text_of(info, 'method_description').strip()}"
        if parse(f"class _:\n{description}") is None:
            description += '\n        """'
        parts.append(f"\n{description}")
    return "\n".join(parts) + "\n"


def _completed(skeleton: str, solution: Mapping[str, str], name: str, tests: str) -> str:
    """The skeleton with those methods of the solution that the tests call and it does not have."""
    node = class_in(skeleton, name)
    there = {method.name for method in methods_of(node)}
    called = {part.attr for part in ast.walk(ast.parse(tests)) if isinstance(part, ast.Attribute)}
    given = [code for method, code in solution.items() if method in called - there]
    lines = skeleton.split("\n")
    lines[node.end_lineno : node.end_lineno] = [line for code in given for line in ["", *code.split("\n")]]
    return "\n".join(lines)


def methods_of_solution(row: DataRow) -> dict[str, str]:
    """The sources of the reference's methods by name; none where there is no reference."""
    source, name = text_of(row, "solution_code"), text_of(row, "class_name")
    if parse(source) is None or f"class {name}" not in source:
        return {}
    return {method.name: _source(method, source) for method in methods_of(class_in(source, name))}


def _to_write(row: DataRow, skeleton: str, name: str) -> dict[str, int]:
    """The methods to write, and how long each is expected to be, in characters: as the reference's, if there is one,
    else as what the skeleton says of it."""
    solution = methods_of_solution(row)
    named = {text_of(info, "method_name") for info in _methods_info(row)}
    members = methods_of(class_in(skeleton, name))
    wanted = [m for m in members if (m.name in named if named else is_stub(m))]
    missing = sorted(named - {member.name for member in wanted})
    if missing:
        raise ValueError(f"the skeleton has no method {missing[0]} (field methods_info)")
    return {m.name: len(solution.get(m.name, "") or _source(m, skeleton)) for m in wanted}


def _methods_info(row: DataRow) -> list[Mapping[str, Any]]:
    infos = row.get("methods_info")
    return [info for info in infos if isinstance(info, Mapping)] if isinstance(infos, list | tuple) else []


def _source(method: FunctionNode, source: str) -> str:
    """The lines of a definition, decorators included."""
    return "\n".join(source.split("\n")[first_line(method) - 1 : method.end_lineno])
