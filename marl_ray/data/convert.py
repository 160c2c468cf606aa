"""Dataset types, which check the rows of a dataset and convert them to tasks."""

from __future__ import annotations

import ast
import base64
import json
import keyword
import pickletools
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

from marl_ray.core.episode import Task
from marl_ray.core.errors import UserError
from marl_ray.data import evalplus
from marl_ray.data.date_windows import DATE
from marl_ray.data.function_problems import FunctionCase, apps_cases, function_task
from marl_ray.data.loading import DataRow, UnsupportedRow
from marl_ray.environments.code_generation.extraction import parse
from marl_ray.sandbox import StdioCase, count_tests, stdio_tests

MAIN = "main"
"""The entry point of a program that reads standard input and prints."""
MAX_BYTES = 1 << 28
"""Maximum bytes of decompressed private tests."""


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
        cases = apps_cases(task_id, inputs, outputs)
        return checked(function_task(task_id, question, str(tests["fn_name"]), text_of(row, "starter_code"), cases))
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
    kinds: set[str] = set()
    for field in ("public_test_cases", "private_test_cases"):
        if not row.get(field):
            continue  # private tests may be missing
        cases = _json(_unpacked(row.get(field), task_id, field), task_id, field)
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


HUMANEVAL = Conversion("code_generation", partial(_humaneval, "humaneval"))
COOPHUMANEVAL = Conversion("code_generation", partial(_humaneval, "coophumaneval"))
TOY = Conversion("code_generation", partial(_humaneval, "toy"))
MBPP = Conversion("code_generation", task_of_mbpp)
APPS = Conversion("code_generation", _apps)
LIVECODEBENCH = Conversion("code_generation", _livecodebench)


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


def _question(task_id: str, row: DataRow, field: str) -> str:
    question = text_of(row, field)
    if not question:
        raise UserError(f"task {task_id} has no problem text (field {field})")
    return question


def _script_task(task_id: str, row: DataRow, field: str, pairs: Sequence[tuple[Any, Any]]) -> Task:
    """Return the task of a program that reads standard input and prints, tested by pairs of input and output."""
    question = _question(task_id, row, field)
    if not pairs:
        raise UserError(f"task {task_id} has no tests")
    cases = [StdioCase(_text(stdin, task_id), _text(stdout, task_id)) for stdin, stdout in pairs]
    return Task(task_id, question, {"entry_point": MAIN, "tests": stdio_tests(cases), "script": True})


def _text(value: Any, task_id: str) -> str:
    """Return an input or output. Some rows of APPS have a list of lines, or an integer in place of its text."""
    lines = []
    for line in value if isinstance(value, list) else [value]:
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


def _unpacked(value: Any, task_id: str, field: str) -> Any:
    """Return the field, unpacked if it is LiveCodeBench's base64 of compressed pickled JSON text."""
    if not isinstance(value, str) or value.lstrip()[:1] in ("[", "{", ""):
        return value
    try:
        packed = zlib.decompressobj()
        data = packed.decompress(base64.b64decode(value, validate=True), MAX_BYTES)
        if packed.unconsumed_tail:  # too large
            return value
        return _pickled_text(data)
    except (zlib.error, ValueError):
        raise UserError(f"task {task_id}: {field} is neither JSON nor packed as LiveCodeBench's is") from None


_TEXT_OPCODES = ("SHORT_BINUNICODE", "BINUNICODE")
_SILENT_OPCODES = ("PROTO", "FRAME", "MEMOIZE", "STOP")
"""Opcodes beside a text in its pickle. Others call functions, or allocate as much memory as their argument says."""


def _pickled_text(data: bytes) -> str:
    """Return the text of a pickle that holds nothing else, without unpickling. Raises ValueError for other pickles."""
    texts: list[str] = []
    for opcode, argument, _ in pickletools.genops(data):  # reads the opcodes and executes none
        if opcode.name in _TEXT_OPCODES:
            texts.append(str(argument))
        elif opcode.name not in _SILENT_OPCODES:
            raise ValueError(f"the pickle has the opcode {opcode.name}")
    if len(texts) != 1:
        raise ValueError(f"the pickle has {len(texts)} texts")
    return texts[0]


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
