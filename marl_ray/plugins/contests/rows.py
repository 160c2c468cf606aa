"""Rows of APPS and LiveCodeBench: problems whose programs read standard input and print, or define a function."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from marl_ray.core.episode import Task
from marl_ray.core.errors import UserError
from marl_ray.data.convert import Conversion, checked, id_of, text_of
from marl_ray.data.date_windows import DATE
from marl_ray.data.loading import DataRow, UnsupportedRow
from marl_ray.plugins.contests.function_problems import FunctionCase, apps_cases, function_task
from marl_ray.plugins.contests.packed_tests import unpacked
from marl_ray.sandbox import StdioCase, stdio_tests

MAIN = "main"
"""The entry point of a program that reads standard input and prints."""


def _apps(row: DataRow, number: int) -> Task:
    """Convert a row of APPS (Hendrycks et al., "Measuring Coding Challenge Competence With APPS", 2021).

    Fields are problem_id, question and input_output: `{"inputs": [...], "outputs": [...]}`, as JSON. Problems that ask
    for a function have its name as `fn_name`, and may have `starter_code`. Problems without tests are not supported.
    """
    task_id = id_of(row, "APPS", number, "problem_id", "id")
    if not row.get("input_output"):
        raise UnsupportedRow(f"task {task_id} has no tests (field input_output is empty)")
    tests = _json(row["input_output"], task_id, "input_output")
    if not isinstance(tests, dict) or not isinstance(tests.get("inputs"), list):
        raise UserError(f"task {task_id} has no tests (field input_output, with inputs and outputs)")
    inputs = tests["inputs"]
    outputs = tests.get("outputs")
    if not isinstance(outputs, list) or len(inputs) != len(outputs):
        raise UserError(f"task {task_id}: input_output should have as many outputs as inputs")
    if tests.get("fn_name"):
        question = _question(task_id, row, "question")
        starter = text_of(row, "starter_code")
        cases = apps_cases(task_id, inputs, outputs)
        return checked(function_task(task_id, question, str(tests["fn_name"]), starter, cases))
    return _script_task(task_id, row, "question", list(zip(inputs, outputs, strict=True)))


def _livecodebench(row: DataRow, number: int) -> Task:
    """Convert a row of LiveCodeBench (Jain et al., 2024).

    Fields are question_id, question_content, public_test_cases and private_test_cases, both JSON lists of `{"input",
    "output", "testtype"}`. Private tests may be packed as on the hub, or missing. They follow the public tests, which
    `external.sandbox_slice` therefore selects first. Problems that ask for a function (`functional`) have its name as
    `func_name` in metadata, and starter_code; the lines of an input are its arguments. contest_date is the date for
    `marl-ray eval --since` and `--until`.
    """
    task_id = id_of(row, "LiveCodeBench", number, "question_id")
    pairs: list[tuple[Any, Any]] = []
    kinds = set()
    for field in ("public_test_cases", "private_test_cases"):
        if not row.get(field):
            continue  # private tests may be missing
        cases = _json(unpacked(row.get(field), task_id, field), task_id, field)
        if not isinstance(cases, list) or not all(isinstance(case, dict) for case in cases):
            raise UserError(f"task {task_id}: {field} should be a list of objects")
        for case in cases:
            kinds.add(str(case.get("testtype", "stdin")))
            pairs.append((case.get("input"), case.get("output")))
    if len(kinds) > 1:
        raise UserError(f"task {task_id} has tests of several kinds: {', '.join(sorted(kinds))}")
    if kinds == {"functional"}:
        task = _livecodebench_function(task_id, row, pairs)
    else:
        task = _script_task(task_id, row, "question_content", pairs)
    date = str(row.get("contest_date") or "")[:10]  # a text, or a datetime of a Parquet file
    if not date:
        return task
    return replace(task, fields={**task.fields, DATE: date})


def _livecodebench_function(task_id: str, row: DataRow, pairs: Sequence[tuple[Any, Any]]) -> Task:
    metadata = _json(row.get("metadata") or "{}", task_id, "metadata")
    if not isinstance(metadata, dict) or not isinstance(metadata.get("func_name"), str):
        raise UserError(f"task {task_id} asks for a function without a name: metadata should have func_name")
    cases = []
    for arguments, result in pairs:
        values = []
        # Not `splitlines`: JSON texts may contain U+2028, which is no end of a line here.
        for line in _text(arguments, task_id).split("\n"):
            if line.strip():
                values.append(_json(line, task_id, "an argument of a test"))
        cases.append(FunctionCase(values, [_json(result, task_id, "the output of a test")]))
    question = _question(task_id, row, "question_content")
    starter = text_of(row, "starter_code")
    return checked(function_task(task_id, question, metadata["func_name"], starter, cases))


def _question(task_id: str, row: DataRow, field: str) -> str:
    question = text_of(row, field)
    if not question:
        raise UserError(f"task {task_id} has no problem text (field {field})")
    return question


def _script_task(task_id: str, row: DataRow, field: str, pairs: Sequence[tuple[Any, Any]]) -> Task:
    """Return the task of a program that reads standard input and prints, tested by pairs of input and output."""
    question = _question(task_id, row, field)
    # A script has no function to call: its tests run the whole program.
    if not pairs:
        raise UserError(f"task {task_id} has no tests")
    cases = []
    for stdin, stdout in pairs:
        cases.append(StdioCase(_text(stdin, task_id), _text(stdout, task_id)))
    fields = {"entry_point": MAIN, "tests": stdio_tests(cases), "script": True}
    return Task(task_id, question, fields)


def _text(value: Any, task_id: str) -> str:
    """Return an input or output. Some rows of APPS have a list of lines, or an integer in place of its text."""
    if not isinstance(value, list):
        value = [value]
    lines = []
    for line in value:
        if type(line) is not int and not isinstance(line, str):  # True is an `int` too
            raise UserError(f"task {task_id}: inputs and outputs should be texts, not {value!r:.60}")
        lines.append(str(line))
    return "\n".join(lines)


def _json(value: Any, task_id: str, field: str) -> Any:
    """Return the value of a JSON field, which may be parsed already."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value, parse_int=_integer)
    except (ValueError, RecursionError):
        raise UserError(f"task {task_id}: {field} is not JSON") from None


class _LongInteger(str):
    """The digits of an integer that is too long for Python to convert. Scripts read and print them as text; as an
    argument or result of a function they make the row unusable, because their representation is no Python literal."""

    def __repr__(self) -> str:
        return str(self)


def _integer(digits: str) -> int | str:
    """Return an integer, or its digits if they are more than Python converts (APPS has such rows)."""
    try:
        return int(digits)
    except ValueError:
        return _LongInteger(digits)


APPS = Conversion("code_generation", _apps)
LIVECODEBENCH = Conversion("code_generation", _livecodebench)
