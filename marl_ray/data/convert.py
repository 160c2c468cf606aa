"""Dataset types, which check the rows of a dataset and convert them to tasks."""

from __future__ import annotations

import ast
import keyword
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any, Protocol

from marl_ray.core.episode import Task
from marl_ray.core.errors import UserError
from marl_ray.data.loading import DataRow
from marl_ray.environments.bug_fix.program import diff_lines, parse_buggy_program
from marl_ray.environments.code_generation.extraction import parse
from marl_ray.sandbox import count_tests


class DatasetType(Protocol):
    """A conversion of rows to tasks."""

    @property
    def environment(self) -> str:
        """The default environment of the tasks: a registered name, or `module:Attr`."""

    def task(self, row: DataRow, number: int) -> Task:
        """Return the task of row `number` (from 0) of a split. Raises UserError with the task's id for an invalid row."""


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
    """Rows with MBPP's fields (text, code, test_list, test_setup_code; `prompt` and `test_imports` in its sanitized
    version), or with HumanEval's fields."""

    environment: str = "code_generation"

    def task(self, row: DataRow, number: int) -> Task:
        """See `DatasetType`."""
        own = not row.get("entry_point") and ("test_list" in row or "code" in row)
        return _checked(_from_mbpp(row, number) if own else _from_humaneval(row, "mbpp", number))


HUMANEVAL, COOPHUMANEVAL, TOY = HumanEval("humaneval"), HumanEval("coophumaneval"), HumanEval("toy")
MBPP = Mbpp()


@dataclass(frozen=True, slots=True)
class BuggyPrograms:
    """Rows with HumanEval's fields, `buggy_solution` and optionally `canonical_solution`, such as QuixBugs.

    Both solutions are complete programs, or the continuation of `declaration` if the row has one. HumanEvalPack also has
    `import` (code before the declaration) and `test_setup` (code before the test).
    """

    environment: str = "bug_fix"

    def task(self, row: DataRow, number: int) -> Task:
        """See `DatasetType`."""
        setup, test = text_of(row, "test_setup"), text_of(row, "test")
        task = _from_humaneval({**row, "test": f"{setup}\n{test}"} if setup and test else row, "bug_fix", number)
        buggy, reference = _program(row, "buggy_solution"), _program(row, "canonical_solution")
        if not buggy:
            raise UserError(f"task {task.id} has no buggy program (field buggy_solution)")
        for field, program in (("buggy_solution", buggy), ("canonical_solution", reference)):
            if program:
                _check_program(task, field, program)
        if reference and not diff_lines(buggy, reference).size:
            raise UserError(f"task {task.id}: canonical_solution is the same program as buggy_solution")
        return _checked(replace(task, fields={**task.fields, "buggy": buggy, "reference": reference}))


BUG_FIX = BuggyPrograms()


@dataclass(frozen=True, slots=True)
class ReferenceRows:
    """Rows with a reference solution as part of the task, for a solver and testers.

    Rows have HumanEval's fields with `canonical_solution` (the continuation of the prompt, or a program), or MBPP's fields
    with `code` (a program).
    """

    environment: str = "solver_tester"

    def task(self, row: DataRow, number: int) -> Task:
        """See `DatasetType`."""
        task = MBPP.task(row, number)  # accepts HumanEval's fields too
        return replace(task, fields={**task.fields, "reference": _reference(row, task)})


SOLVER_TESTER = ReferenceRows()


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


def _program(row: DataRow, field: str) -> str:
    """Return a program without surrounding blank lines, so line numbers start at its first line; empty if missing."""
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


def _reference(row: DataRow, task: Task) -> str:
    body, entry_point = text_of(row, "canonical_solution"), task.fields["entry_point"]
    programs = [f"{text_of(row, 'prompt')}{body}", body] if body else [text_of(row, "code")]
    if not any(programs):
        raise UserError(f"task {task.id} has no reference solution (field canonical_solution, or code)")
    for program in programs:
        tree = parse(program)
        if tree is not None and any(isinstance(n, ast.FunctionDef) and n.name == entry_point for n in tree.body):
            return program
    raise UserError(f"task {task.id}: its reference solution has no function {entry_point}, its entry point")


def _tested_function(code: str, tests: tuple[str, ...]) -> ast.FunctionDef | None:
    """Return the function of `code` that most tests call. The outermost call of the first test breaks ties."""
    functions = {node.name: node for node in _statements(code) if isinstance(node, ast.FunctionDef)}
    calls: Counter[str] = Counter()
    for test in tests:
        # Breadth first, so an outer call comes before its arguments.
        nodes = [node for statement in _statements(test) for node in ast.walk(statement)]
        names = [node.func.id for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
        calls.update(list(dict.fromkeys(name for name in names if name in functions)))
    return functions[calls.most_common(1)[0][0]] if calls else None


def _statements(code: str) -> list[ast.stmt]:
    tree = parse(code)
    return tree.body if tree is not None else []


def id_of(row: DataRow, dataset_type: str, number: int) -> str:
    """Return the row's task_id, or its index in the split."""
    value = row.get("task_id")
    return f"{dataset_type}/row {number}" if value is None or value == "" else str(value)


def text_of(row: DataRow, field: str) -> str:
    """Return a field's text with `\\n` newlines, empty if it is missing or not a string."""
    value: Any = row.get(field)
    return value.replace("\r\n", "\n") if isinstance(value, str) and value.strip() else ""


def lines_of(row: DataRow, field: str) -> tuple[str, ...]:
    """Return the non-blank strings of a list field, empty if it is missing."""
    value: Any = row.get(field)
    items = value if isinstance(value, list | tuple) else []
    return tuple(item.replace("\r\n", "\n").strip() for item in items if isinstance(item, str) and item.strip())
