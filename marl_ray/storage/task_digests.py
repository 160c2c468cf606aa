"""Digests of a run's tasks in their order, which tell whether the data have changed before the run is resumed.

The position in the data is a number: with other tasks, or in another order, a resumed run would train on some tasks
twice and never on others.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from marl_ray.core.episode import Task
from marl_ray.core.errors import UserError
from marl_ray.core.files import write_atomically
from marl_ray.core.text import pluralize


def check_same_tasks(file: Path, dataset: str, splits: Mapping[str, Sequence[Task]]) -> None:
    """Raise UserError if the tasks of a split differ from the tasks that the run began with, whose digests are in
    `file`. A run of an earlier version has no such file."""
    if not file.exists():
        return
    before = json.loads(file.read_text(encoding="utf-8"))
    for split, tasks in splits.items():
        if split in before and before[split] != describe_tasks(tasks):
            then = pluralize(before[split]["tasks"], "task")
            # Why the digests differ is not known: the tasks themselves are not stored.
            raise UserError(
                f"dataset {dataset} has changed: {split} began with {then} and has {len(tasks)} now, or their content "
                "or order differs. Restore the data to resume this run, or start a new run"
            )


def write_task_digests(file: Path, splits: Mapping[str, Sequence[Task]]) -> None:
    """Write the digests of each split's tasks."""
    digests = {split: describe_tasks(tasks) for split, tasks in splits.items()}
    write_atomically(file, (json.dumps(digests, indent=1) + "\n").encode())


def describe_tasks(tasks: Sequence[Task]) -> dict[str, int | str]:
    """Return the number of tasks, and a digest of their ids, prompts and fields in their order."""
    digest = hashlib.sha256()
    for task in tasks:
        digest.update(json.dumps([task.id, task.prompt, _plain(task.fields)]).encode())
    return {"tasks": len(tasks), "digest": digest.hexdigest()}


def _plain(value: Any) -> Any:
    """Return a value as data of JSON, in the same way in every process; of other objects, the name of the class."""
    if isinstance(value, str | int | float | None):
        return value
    if isinstance(value, Mapping):
        pairs = sorted(value.items(), key=lambda pair: str(pair[0]))
        return [[_plain(key), _plain(inner)] for key, inner in pairs]
    if isinstance(value, list | tuple):
        return list(map(_plain, value))
    if isinstance(value, set | frozenset):
        # A set has another order in every process. Texts can be sorted whatever the types of the values.
        return sorted(json.dumps(_plain(inner)) for inner in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [_plain(getattr(value, field.name)) for field in dataclasses.fields(value)]
    if hasattr(value, "tolist"):  # an array, or a number of numpy
        return _plain(value.tolist())
    return type(value).__name__
