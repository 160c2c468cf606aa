"""Files of completions, checked as a whole before anything runs.

A line is a JSON object: `task_id`, `completions` (one text an agent, in the order of the roles), and `turn` where that
is worth saying. Any number of lines may be about one task.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marl_ray.core.episode import Task
from marl_ray.core.errors import UserError
from marl_ray.core.files import expand_home
from marl_ray.core.text import pluralize
from marl_ray.data.loading import load_rows, load_tasks, read_jsonl

KEYS = ("task_id", "completions", "turn")
FILE = "completions file"


@dataclass(frozen=True, slots=True)
class JointResponse:
    """A joint action of the file: its line, from 1, its task, one text an agent, and the turn it is said to be of."""

    line: int
    task: Task
    completions: tuple[str, ...]
    turn: int | None = None


def tasks_by_id(dataset: str, split: str, dataset_type: str) -> dict[str, Task]:
    """The tasks of a split by their ids, and by those of their rows: MBPP's are numbers. Raises UserError."""
    tasks = load_tasks(dataset, split, dataset_type)
    own = (str(row.get("task_id")) for row in load_rows(dataset, split))
    return dict(zip(own, tasks, strict=True)) | {task.id: task for task in tasks}


def read_completions(path: Path, tasks: Mapping[str, Task]) -> list[JointResponse]:
    """The file's joint actions. Raises UserError, which names the first bad line and says how many more there are."""
    path = expand_home(path)
    found: list[JointResponse] = []
    faults: list[str] = []
    try:
        for number, row in read_jsonl(path, FILE):
            try:
                found.append(_joint(number, row, tasks))
            except UserError as error:
                faults.append(f"line {number}: {error}")
    except OSError as error:
        raise UserError(f"{FILE} {path} cannot be read ({error.strerror})") from None
    if faults:
        more = f" (and {pluralize(len(faults) - 1, 'more bad line')})" if len(faults) > 1 else ""
        raise UserError(f"{FILE} {path}, {faults[0]}{more}")
    if not found:
        raise UserError(f"{FILE} {path} holds no line")
    return found


def _joint(number: int, row: Mapping[str, Any], tasks: Mapping[str, Task]) -> JointResponse:
    for key in row:
        if key not in KEYS:
            raise UserError(f"unknown key {key!r}{_meant(key, KEYS)}")
    for key in ("task_id", "completions"):
        if key not in row:
            raise UserError(f"{key} is missing")
    name, texts, turn = str(row["task_id"]), row["completions"], row.get("turn")
    if name not in tasks:
        raise UserError(f"the dataset has no task {name!r}{_meant(name, list(tasks))}")
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
        raise UserError("completions should be a list of texts, one an agent")
    if turn is not None and (type(turn) is not int or turn < 1):
        raise UserError(f"turn should be a whole number from 1, got {turn!r}")
    return JointResponse(number, tasks[name], tuple(texts), turn)


def _meant(word: str, known: list[str] | tuple[str, ...]) -> str:
    near = difflib.get_close_matches(word, known, n=1)
    return f": did you mean {near[0]}?" if near else ""
