"""The check of a dataset type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from marl_ray.core.episode import Task
from marl_ray.core.errors import UserError
from marl_ray.environments import ENVIRONMENTS
from marl_ray.testing.values import require

if TYPE_CHECKING:
    from marl_ray.data.convert import DatasetType
    from marl_ray.data.loading import DataRow


def check_dataset(dataset: DatasetType, rows: Sequence[DataRow]) -> None:
    """Check a dataset type on every row, and on rows without values."""
    require(isinstance(dataset.environment, str), "environment must be a registered name or module:Attr")
    if dataset.environment:
        ENVIRONMENTS.check(dataset.environment)
    tasks: list[Task] = []
    for number, row in enumerate(rows):
        task = dataset.task(row, number)
        _check_task(f"row {number}", task)
        require(task == dataset.task(row, number), f"row {number}: task returned two different tasks for the same row")
        tasks.append(task)
    require(len({task.id for task in tasks}) == len(tasks), "two tasks have the same id")
    # A file may lack a column, or have an empty cell in it.
    for empty in ({}, dict.fromkeys(rows[0])):
        try:
            dataset.task(empty, 0)
        except UserError:
            continue
        except Exception as error:
            raise AssertionError(f"a row without values must raise a UserError, not {error!r}") from error
        raise AssertionError(f"the row {empty} must raise a UserError")


def _check_task(row: str, task: Task) -> None:
    require(isinstance(task, Task), f"{row}: task must return a Task, not {task!r}")
    for name in ("id", "prompt"):
        text = getattr(task, name)
        is_valid = isinstance(text, str) and text.strip() != ""
        require(is_valid, f"{row}: the task's {name} must be a non-empty string")
    require(isinstance(task.fields, Mapping), f"{row}: fields must be a mapping")
    for name, value in task.fields.items():
        require(isinstance(name, str), f"{row}: the names of fields must be strings, not {name!r}")
        try:
            hash(value)
        except TypeError:
            raise AssertionError(f"{row}: field {name} must be hashable, for example a tuple") from None
