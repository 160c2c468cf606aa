"""Dataset types, which check the rows of a dataset and convert them to tasks."""

from __future__ import annotations

import ast
import keyword
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from marl_ray.core.episode import Task
from marl_ray.core.errors import UserError
from marl_ray.data import evalplus
from marl_ray.data.loading import DataRow
from marl_ray.environments.code_generation.extraction import parse
from marl_ray.sandbox import count_tests


class DatasetType(Protocol):
    """A conversion of rows to tasks."""

    @property
    def environment(self) -> str:
        """The default environment of the tasks: a registered name, or `module:Attr`; empty if there is none."""

    def task(self, row: DataRow, number: int) -> Task:
        """Return the task of row `number` (from 0) of a split. Raises UserError with the id of an invalid row."""


@dataclass(frozen=True, slots=True)
class Conversion:
    """A `DatasetType` whose method `task` is a function."""

    environment: str
    task: Callable[[DataRow, int], Task]


def _humaneval(dataset: str, row: DataRow, number: int) -> Task:
    """Convert a row with HumanEval's fields: task_id, prompt, entry_point, test. In EvalPlus's rows base_input and
    plus_input with canonical_solution take the place of test."""
    return checked(task_of_humaneval(row, dataset, number))


def task_of_mbpp(row: DataRow, number: int) -> Task:
    """Convert a row with MBPP's fields (text, code, test_list, test_setup_code; `prompt` and `test_imports` in its
    sanitized version), or with HumanEval's fields."""
    has_own_fields = "test_list" in row or "code" in row
    if has_own_fields and not row.get("entry_point"):
        return checked(_from_mbpp(row, number))
    return checked(task_of_humaneval(row, "mbpp", number))


HUMANEVAL = Conversion("code_generation", partial(_humaneval, "humaneval"))
COOPHUMANEVAL = Conversion("code_generation", partial(_humaneval, "coophumaneval"))
TOY = Conversion("code_generation", partial(_humaneval, "toy"))
MBPP = Conversion("code_generation", task_of_mbpp)


def checked(task: Task) -> Task:
    """Return the task. Raises UserError if its tests cannot be counted."""
    try:
        count_tests(task.fields["tests"], task.fields["entry_point"])
    except ValueError as error:
        raise UserError(f"task {task.id}: {error}") from None
    return task


def task_of_humaneval(row: DataRow, dataset_type: str, number: int) -> Task:
    """Return the task of a row with HumanEval's fields, whose tests are not checked yet. Raises UserError."""
    task_id = id_of(row, dataset_type, number)
    entry_point = text_of(row, "entry_point")
    if not entry_point:
        raise UserError(f"task {task_id} has no entry point (field entry_point)")
    if not entry_point.isidentifier() or keyword.iskeyword(entry_point):
        raise UserError(f"task {task_id}: entry point {entry_point!r} is not a function's name")
    prompt = text_of(row, "prompt")
    if not prompt:
        raise UserError(f"task {task_id} has no problem text (field prompt)")
    tests: str | tuple[str, ...] = text_of(row, "test") or lines_of(row, "test_list")
    if evalplus.has_inputs(row):
        try:
            tests = evalplus.input_tests(row, task_id, entry_point)
            prompt = evalplus.declared_prompt(row, prompt, entry_point)
        except (ValueError, TypeError, LookupError) as error:
            raise UserError(f"task {task_id}: {error}") from None
    if not tests:
        raise UserError(f"task {task_id} has no tests (field test)")
    return Task(task_id, prompt, {"entry_point": entry_point, "tests": tests})


def _from_mbpp(row: DataRow, number: int) -> Task:
    task_id = id_of(row, "MBPP", number)
    if task_id.isdecimal():
        task_id = f"MBPP/{task_id}"
    asserts = lines_of(row, "test_list")
    if not asserts:
        raise UserError(f"task {task_id} has no tests (field test_list)")
    function = _tested_function(text_of(row, "code"), asserts)
    if function is None:
        raise UserError(f"task {task_id} has no entry point: its tests call no function that its code defines")
    text = text_of(row, "text") or text_of(row, "prompt")
    if not text:
        raise UserError(f"task {task_id} has no problem text (field text)")
    prompt = f"{text.strip()}\nThe function is `{function.name}({ast.unparse(function.args)})`.\n"
    setup = "\n".join([*lines_of(row, "test_imports"), text_of(row, "test_setup_code")]).strip()
    tests = (setup, *asserts) if setup else asserts
    return Task(task_id, prompt, {"entry_point": function.name, "tests": tests})


def _tested_function(code: str, tests: tuple[str, ...]) -> ast.FunctionDef | None:
    """Return the function of `code` that most tests call. The outermost call of the first test breaks ties."""
    functions = {node.name: node for node in statements_of(code) if isinstance(node, ast.FunctionDef)}
    tests_calling: Counter[str] = Counter()
    for test in tests:
        called: dict[str, None] = {}  # in order, each function once
        for statement in statements_of(test):
            # `walk` is breadth first: an outer call comes before its arguments.
            for node in ast.walk(statement):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in functions:
                    called[node.func.id] = None
        tests_calling.update(called.keys())
    if not tests_calling:
        return None
    # Of equal counts `most_common` returns the one that was counted first.
    name, _ = tests_calling.most_common(1)[0]
    return functions[name]


def statements_of(code: str) -> list[ast.stmt]:
    """Return the statements of a program, none if it has a syntax error."""
    tree = parse(code)
    return tree.body if tree is not None else []


def text_task(dataset: str, field: str, row: DataRow, number: int) -> Task:
    """Return the task of a row with a text in `field`. Raises UserError."""
    task_id = id_of(row, dataset, number, "id")
    text = text_of(row, field)
    if not text:
        raise UserError(f"task {task_id} has no text (field {field})")
    return Task(task_id, text.strip(), {})


def id_of(row: DataRow, dataset: str, number: int, *fields: str) -> str:
    """Return the row's task_id, or the dataset's name with the row's first non-empty field or index in the split."""
    if row.get("task_id") not in (None, ""):
        return str(row["task_id"])
    for field in fields:
        if row.get(field) not in (None, ""):
            return f"{dataset}/{row[field]}"
    return f"{dataset}/row {number}"


def text_of(row: DataRow, field: str) -> str:
    """Return a field's text with `\\n` newlines, empty if it is missing or not a string."""
    value: Any = row.get(field)
    if not isinstance(value, str) or not value.strip():
        return ""
    return value.replace("\r\n", "\n")


def lines_of(row: DataRow, field: str) -> tuple[str, ...]:
    """Return the non-blank strings of a list field, empty if it is missing."""
    value: Any = row.get(field)
    if not isinstance(value, list | tuple):
        return ()
    lines = []
    for item in value:
        if isinstance(item, str) and item.strip():
            lines.append(item.replace("\r\n", "\n").strip())
    return tuple(lines)
