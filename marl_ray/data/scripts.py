"""Rows of problems whose programs read standard input and print: APPS (Hendrycks et al., "Measuring Coding Challenge
Competence With APPS", 2021) and LiveCodeBench (Jain et al., 2024).

Tests are pairs of input and output. Public tests precede private ones, so the public tests are the first ones of
`external.sandbox_slice`. Problems that ask for a function (`fn_name`, `functional`) are rejected.
"""

from __future__ import annotations

import base64
import binascii
import io
import json
import pickle
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from marl_ray.core.episode import Task
from marl_ray.core.errors import UserError
from marl_ray.data.convert import text_of
from marl_ray.data.loading import DataRow
from marl_ray.sandbox import StdioCase, stdio_tests

MAIN = "main"
"""The entry point, which reads the input and prints the output."""
FUNCTION = "asks for a function, not for a program that reads standard input: leave it out of the split"
MAX_BYTES = 1 << 28
"""Maximum bytes of decompressed private tests."""


@dataclass(frozen=True, slots=True)
class Apps:
    """Rows with the fields problem_id, question and input_output: `{"inputs": [...], "outputs": [...]}`, as JSON."""

    environment: str = "code_generation"

    def task(self, row: DataRow, number: int) -> Task:
        """See `DatasetType`."""
        task_id = _id_of(row, ("problem_id", "id"), "APPS", number)
        tests = _json(row.get("input_output"), task_id, "input_output")
        if not isinstance(tests, dict) or not isinstance(tests.get("inputs"), list):
            raise UserError(f"task {task_id} has no tests (field input_output, with inputs and outputs)")
        if tests.get("fn_name"):
            raise UserError(f"task {task_id} {FUNCTION}")
        inputs, outputs = tests["inputs"], tests.get("outputs")
        if not isinstance(outputs, list) or len(inputs) != len(outputs):
            raise UserError(f"task {task_id}: input_output should have as many outputs as inputs")
        return _task(task_id, text_of(row, "question"), "question", list(zip(inputs, outputs, strict=True)))


@dataclass(frozen=True, slots=True)
class LiveCodeBench:
    """Rows with the fields question_id, question_content, public_test_cases and private_test_cases, both JSON lists of
    `{"input", "output", "testtype"}`. Private tests may be packed as on the hub, or missing."""

    environment: str = "code_generation"

    def task(self, row: DataRow, number: int) -> Task:
        """See `DatasetType`."""
        task_id = _id_of(row, ("question_id",), "LiveCodeBench", number)
        pairs: list[tuple[Any, Any]] = []
        for field in ("public_test_cases", "private_test_cases"):
            cases = _json(_unpacked(row.get(field), task_id, field), task_id, field) if row.get(field) else []
            if not isinstance(cases, list) or not all(isinstance(case, dict) for case in cases):
                raise UserError(f"task {task_id}: {field} should be a list of objects")
            if any(case.get("testtype", "stdin") != "stdin" for case in cases):
                raise UserError(f"task {task_id} {FUNCTION}")
            pairs += [(case.get("input"), case.get("output")) for case in cases]
        return _task(task_id, text_of(row, "question_content"), "question_content", pairs)


APPS, LIVECODEBENCH = Apps(), LiveCodeBench()


def _task(task_id: str, question: str, field: str, pairs: Sequence[tuple[Any, Any]]) -> Task:
    if not question:
        raise UserError(f"task {task_id} has no problem text (field {field})")
    if not pairs:
        raise UserError(f"task {task_id} has no tests")
    cases = [StdioCase(_text(stdin, task_id), _text(stdout, task_id)) for stdin, stdout in pairs]
    return Task(task_id, question, {"entry_point": MAIN, "tests": stdio_tests(cases), "script": True})


def _text(value: Any, task_id: str) -> str:
    """Return an input or output, which some rows of APPS have as a list of lines."""
    if isinstance(value, list) and all(isinstance(line, str) for line in value):
        return "\n".join(value)
    if not isinstance(value, str):
        raise UserError(f"task {task_id}: inputs and outputs should be texts, not {value!r:.60}")
    return value


def _id_of(row: DataRow, fields: Sequence[str], dataset: str, number: int) -> str:
    """Return the row's task_id, or the dataset's name with the first of these fields or the index in the split."""
    if row.get("task_id") not in (None, ""):
        return str(row["task_id"])
    own = next((row[field] for field in fields if row.get(field) not in (None, "")), f"row {number}")
    return f"{dataset}/{own}"


def _json(value: Any, task_id: str, field: str) -> Any:
    """Return the value of a JSON field, which may be parsed already."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        raise UserError(f"task {task_id}: {field} is not JSON") from None


def _unpacked(value: Any, task_id: str, field: str) -> Any:
    """Return the field, unpacked if it is LiveCodeBench's base64 of compressed pickled JSON text."""
    if not isinstance(value, str) or value.lstrip()[:1] in ("[", "{", ""):
        return value
    try:
        packed = zlib.decompressobj()
        data = packed.decompress(base64.b64decode(value, validate=True), MAX_BYTES)
        return value if packed.unconsumed_tail else _TextUnpickler(io.BytesIO(data)).load()
    except (zlib.error, pickle.UnpicklingError, EOFError, *_NOT_PACKED):
        raise UserError(f"task {task_id}: {field} is neither JSON nor packed as LiveCodeBench's is") from None


_NOT_PACKED = (binascii.Error, ValueError, LookupError, TypeError, AttributeError)
"""Further errors that decoding invalid data raises."""


class _TextUnpickler(pickle.Unpickler):
    """An unpickler of plain text, which rejects every class and function without calling it."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"{module}.{name}")
