"""A run is not resumed with other data than it began with."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from marl_ray.core.episode import Task
from marl_ray.core.errors import UserError
from marl_ray.environments.reward import TaskRow
from marl_ray.storage.task_digests import check_same_tasks, describe_tasks, write_task_digests

TASKS = [Task(f"t/{number}", f"Prompt {number}.", {"tests": (f"assert f({number})",)}) for number in range(4)]
CHANGED = {
    "more": [*TASKS, Task("t/4", "Prompt 4.", {})],
    "fewer": TASKS[:3],
    "order": [TASKS[1], TASKS[0], *TASKS[2:]],
    "prompt": [replace(TASKS[0], prompt="Another."), *TASKS[1:]],
    "tests": [replace(TASKS[0], fields={"tests": ("assert f(9)",)}), *TASKS[1:]],
}


@dataclass(frozen=True)
class Inner:
    numbers: tuple[int, ...]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"row": TaskRow("Add.", {"solution": 3})}, {"row": TaskRow("Add.", {"solution": 4})}),
        ({"row": TaskRow("Add.", {"tests": ["a"]})}, {"row": TaskRow("Add.", {"tests": ["b"]})}),
        ({"inner": Inner((1, 2))}, {"inner": Inner((1, 3))}),
        ({"nested": (("a", 1),)}, {"nested": (("a", 2),)}),
        ({"array": np.array([1.0, 2.0])}, {"array": np.array([1.0, 3.0])}),
        ({"set": frozenset(("a", "b"))}, {"set": frozenset(("a", "c"))}),
    ],
    ids=["column", "list", "dataclass", "tuple", "array", "set"],
)
def test_every_field_counts(before: dict[str, Any], after: dict[str, Any]) -> None:
    first, same, other = (describe_tasks([Task("t", "", fields)]) for fields in (before, dict(before), after))
    assert first == same != other


def test_the_same_tasks_are_accepted(tmp_path: Path) -> None:
    file = tmp_path / "tasks.json"
    check_same_tasks(file, "data.jsonl", {"train": TASKS})
    write_task_digests(file, {"train": TASKS, "test[:2]": TASKS[:2]})
    check_same_tasks(file, "data.jsonl", {"train": list(TASKS), "test[:2]": TASKS[:2]})


@pytest.mark.parametrize("change", CHANGED)
def test_other_tasks_are_refused_with_the_name_of_the_file(tmp_path: Path, change: str) -> None:
    file = tmp_path / "tasks.json"
    write_task_digests(file, {"train": TASKS})
    with pytest.raises(UserError, match=r"^dataset data.jsonl has changed: train began with 4 tasks and has "):
        check_same_tasks(file, "data.jsonl", {"train": CHANGED[change]})
