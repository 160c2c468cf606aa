"""Fields of rows that hold structured values."""

from __future__ import annotations

import ast
import json
from typing import Any

from marl_ray.core.errors import UserError
from marl_ray.data.loading import DataRow


def value_of(row: DataRow, field: str, task_id: str) -> Any:
    """Return a field, read from JSON or from a Python literal if it is a text. None if it is missing or empty. Raises
    UserError for other texts."""
    value: Any = row.get(field)
    if not isinstance(value, str):
        return value
    for read in (json.loads, ast.literal_eval):
        try:
            return read(value) if value.strip() else None
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            continue
    raise UserError(f"task {task_id}: {field} is neither JSON nor a Python literal")


def list_of(row: DataRow, field: str, task_id: str) -> list[Any]:
    """Return a list field, empty if it is missing. Raises UserError for any other value."""
    value = value_of(row, field, task_id)
    if value is None:
        return []
    if not isinstance(value, list | tuple):
        raise UserError(f"task {task_id}: {field} should be a list")
    return list(value)
