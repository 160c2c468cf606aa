"""The dataset type of function calls in parallel."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from marl_ray.core.episode import Task
from marl_ray.core.errors import UserError
from marl_ray.data.convert import Conversion, id_of, text_of
from marl_ray.data.loading import DataRow
from marl_ray.data.row_fields import list_of


def _function_calls(row: DataRow, number: int) -> Task:
    """Convert a row with `function` (schemas), `ground_truth` (a list of `{name: {argument: [accepted values]}}`) and
    `user_prompt`, or BFCL's `question` (conversations of one message). Lists may be JSON texts."""
    task_id = id_of(row, "function_calls", number, "id")
    request = text_of(row, "user_prompt") or _question(row, task_id)
    functions = _filled(list_of(row, "function", task_id))
    calls = _filled(list_of(row, "ground_truth", task_id))
    if not request or not functions or not calls:
        raise UserError(f"task {task_id} needs user_prompt (or question), function and ground_truth")
    for function in functions:
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise UserError(f"task {task_id}: each entry of function needs a name")
        parameters = function.get("parameters") or {}
        if not isinstance(parameters, Mapping) or not _is_schema(parameters):
            message = "should be an object with the object `properties` and the list `required`"
            raise UserError(f"task {task_id}: parameters of {function['name']} {message}")
    for call in calls:
        if not _is_call(call):
            raise UserError(f"task {task_id}: each entry of ground_truth should be {{name: {{argument: values}}}}")
    lines = [json.dumps(function, ensure_ascii=False) for function in functions]
    fields = {
        "functions": json.dumps(functions),
        "lines": "\n".join(lines),
        "calls": json.dumps(calls),
    }
    return Task(task_id, request.strip(), fields)


def _is_schema(parameters: Mapping[str, Any]) -> bool:
    properties = parameters.get("properties") or {}
    required = parameters.get("required") or []
    return isinstance(properties, Mapping) and isinstance(required, list)


def _is_call(call: Any) -> bool:
    """Return whether a value is `{name: {argument: values}}`."""
    if not isinstance(call, Mapping) or len(call) != 1:
        return False
    (arguments,) = call.values()
    return isinstance(arguments, Mapping)


def _filled(value: Any) -> Any:
    """Return a value without the empty entries of its objects, which tables add to give all rows the same names."""
    if isinstance(value, Mapping):
        return {name: _filled(part) for name, part in value.items() if part is not None}
    if isinstance(value, list | tuple):
        return list(map(_filled, value))
    return value


def _question(row: DataRow, task_id: str) -> str:
    """Return the user's messages of BFCL's field `question`: a text, messages, or a list of conversations."""
    parts: list[Any]
    if isinstance(row.get("question"), str):
        parts = [row["question"]]
    else:
        parts = list_of(row, "question", task_id)
    texts = []
    while parts:
        part = parts.pop(0)
        if isinstance(part, list | tuple):
            parts[:0] = part
        elif isinstance(part, Mapping) and part.get("role") != "system":
            parts.insert(0, part.get("content"))
        elif isinstance(part, str):
            texts.append(part)
    return "\n".join(texts)


FUNCTION_CALLS = Conversion("function_calls", _function_calls)
