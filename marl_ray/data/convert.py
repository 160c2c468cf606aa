"""Dataset types: from a dataset's row to a `Task`, checked here once and nowhere else."""

from __future__ import annotations

import ast
import keyword
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any, Protocol

from marl_ray.core.episode import Task
from marl_ray.core.errors import UserError
from marl_ray.data.tables import DataRow
from marl_ray.environments.bug_fix.program import diff_lines, parse_buggy_program
from marl_ray.environments.code_generation.extraction import parse
from marl_ray.sandbox import count_tests


class DatasetType(Protocol):
    """How rows become tasks."""

    @property
    def environment(self) -> str:
        """The environment of such tasks, unless the config names another: a registered name, or `module:Attr`."""

    def task(self, row: DataRow, number: int) -> Task:
        """The task of a row, the `number`-th (from 0) of its split. Raises UserError that names the task."""


@dataclass(frozen=True, slots=True)
class HumanEval:
    """Rows with HumanEval's fields: task_id, prompt, entry_point, test."""

    name: str
    environment: str = "code_generation"

    def task(self, row: DataRow, number: int) -> Task:
        """See `DatasetType`."""
        return _checked(_from_humaneval(row, self.name, number))


@dataclass(frozen=True, slots=True)
class Mbpp:
    """Rows with MBPP's own fields (text, code, test_list, test_setup_code; `prompt` and `test_imports` in its
    sanitized version), or with those of HumanEval."""

    environment: str = "code_generation"

    def task(self, row: DataRow, number: int) -> Task:
        """See `DatasetType`."""
        own = not row.get("entry_point") and ("test_list" in row or "code" in row)
        return _checked(_from_mbpp(row, number) if own else _from_humaneval(row, "mbpp", number))


HUMANEVAL, COOPHUMANEVAL, TOY = HumanEval("humaneval"), HumanEval("coophumaneval"), HumanEval("toy")
MBPP = Mbpp()


@dataclass(frozen=True, slots=True)
class BuggyPrograms:
    """Rows with HumanEval's fields, `buggy_solution`, and, where it is known, `canonical_solution`, as of QuixBugs.

    Both are whole programs; where the row has a `declaration` they are what follows it. That and the fields `import`
    and `test_setup`, which stand before declaration and test, are HumanEvalPack's.
    """

    environment: str = "bug_fix"

    def task(self, row: DataRow, number: int) -> Task:
        """See `DatasetType`."""
        setup, test = text_of(row, "test_setup"), text_of(row, "test")
        task = _from_humaneval({**row, "test": f"{setup}\n{test}"} if setup and test else row, "bug_fix", number)
        buggy, reference = _whole(row, "buggy_solution"), _whole(row, "canonical_solution")
        if not buggy:
            raise UserError(f"task {task.id} has no buggy program (field buggy_solution)")
        for field, program in (("buggy_solution", buggy), ("canonical_solution", reference)):
            if program:
                _check_program(task, field, program)
        if reference and not diff_lines(buggy, reference).size:
            raise UserError(f"task {task.id}: canonical_solution is the same program as buggy_solution")
        return _checked(replace(task, fields={**task.fields, "buggy": buggy, "reference": reference}))


BUG_FIX = BuggyPrograms()


def _checked(task: Task) -> Task:
    try:
        count_tests(task.fields["tests"], task.fields["entry_point"])
    except ValueError as error:
        raise UserError(f"task {task.id}: {error}") from None
    return task


def _from_humaneval(row: DataRow, dataset_type: str, number: int) -> Task:
    task_id = id_of(row, dataset_type, number)
    entry_point = text_of(row, "entry_point")
    if not entry_point:
        raise UserError(f"task {task_id} has no entry point (field entry_point)")
    if not entry_point.isidentifier() or keyword.iskeyword(entry_point):
        raise UserError(f"task {task_id}: entry point {entry_point!r} is not a function's name")
    tests: str | tuple[str, ...] = text_of(row, "test") or lines_of(row, "test_list")
    if not tests:
        raise UserError(f"task {task_id} has no tests (field test)")
    prompt = text_of(row, "prompt")
    if not prompt:
        raise UserError(f"task {task_id} has no problem text (field prompt)")
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


def _whole(row: DataRow, field: str) -> str:
    """A program, without blank lines around it, so that lines are counted from its first; empty where there is none."""
    body = text_of(row, field)
    above = (
        [text.rstrip("\n") for text in (text_of(row, "import"), text_of(row, "declaration")) if text] if body else []
    )
    return "\n".join([*above, body]).replace("\r", "\n").strip("\n").rstrip()


def _check_program(task: Task, field: str, program: str) -> None:
    try:
        functions = parse_buggy_program(program).functions
    except ValueError as error:
        raise UserError(f"task {task.id}: {field} {error}") from None
    entry_point = task.fields["entry_point"]
    if entry_point not in functions:
        raise UserError(f"task {task.id}: {field} has no function {entry_point}, its entry point")


def _tested_function(code: str, tests: tuple[str, ...]) -> ast.FunctionDef | None:
    """The function of `code` that most of the tests call; the outermost call of the first test decides ties."""
    functions = {node.name: node for node in _statements(code) if isinstance(node, ast.FunctionDef)}
    calls: Counter[str] = Counter()
    for test in tests:
        # Breadth first: what is called outside comes before its arguments.
        nodes = [node for statement in _statements(test) for node in ast.walk(statement)]
        names = [node.func.id for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
        calls.update(list(dict.fromkeys(name for name in names if name in functions)))
    return functions[calls.most_common(1)[0][0]] if calls else None


def _statements(code: str) -> list[ast.stmt]:
    tree = parse(code)
    return tree.body if tree is not None else []


def id_of(row: DataRow, dataset_type: str, number: int) -> str:
    """The row's task_id, or its place in the split."""
    value = row.get("task_id")
    return f"{dataset_type}/row {number}" if value is None or value == "" else str(value)


def text_of(row: DataRow, field: str) -> str:
    """A field's text with plain newlines; empty when it is not there or not text."""
    value: Any = row.get(field)
    return value.replace("\r\n", "\n") if isinstance(value, str) and value.strip() else ""


def lines_of(row: DataRow, field: str) -> tuple[str, ...]:
    """A field that is a list of texts, blank ones left out; empty when it is not there."""
    value: Any = row.get(field)
    items = value if isinstance(value, list | tuple) else []
    return tuple(item.replace("\r\n", "\n").strip() for item in items if isinstance(item, str) and item.strip())
