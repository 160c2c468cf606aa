"""Datasets from the hub, from local files, or bundled: by name and split to a list of tasks."""

from __future__ import annotations

from marl_ray.core.messages import Task
from marl_ray.data.convert import to_task
from marl_ray.data.tables import DataError, check_dataset, load_rows, needs_download
from marl_ray.environments import DATASET_TYPES, PLANNED_TYPES
from marl_ray.plugins import Registry

DATASETS = Registry(
    "dataset.type",
    {
        "humaneval": "marl_ray.data.convert:HUMANEVAL",
        "coophumaneval": "marl_ray.data.convert:COOPHUMANEVAL",
        "mbpp": "marl_ray.data.convert:MBPP",
        "toy": "marl_ray.data.convert:TOY",
    },
)

_TYPE_BY_NAME = {
    "coophumaneval": "coophumaneval",  # before "humaneval", which its name contains
    "humaneval": "humaneval",
    "mbpp": "mbpp",
    "toy": "toy",
    "classeval": "classeval",
    "quixbugs": "bugfix",
    "bugfix": "bugfix",
}


def load_tasks(name: str, split: str, dataset_type: str | None = None) -> list[Task]:
    """The tasks of a split, in the dataset's order.

    `name` is a hub id, the path of a .jsonl or .parquet file (whose one split is `test` and answers to `train`
    too), or `bundled:toy`. `split` may hold a slice: `test[33:163]`. Every row is checked: it has a problem,
    an entry point, tests that can be parsed, and an id of its own. Raises DataError, in one line.
    """
    dataset_type = infer_type(name) if dataset_type is None else dataset_type
    if dataset_type in PLANNED_TYPES:
        raise DataError(f"dataset.type {dataset_type} is not available yet ({_available()})")
    if dataset_type not in DATASET_TYPES:
        raise DataError(f"dataset.type {dataset_type!r} is not known ({_available()})")
    tasks = [to_task(row, dataset_type, number) for number, row in enumerate(load_rows(name, split))]
    seen: dict[str, int] = {}
    for number, task in enumerate(tasks):
        if task.id in seen:
            raise DataError(f"dataset {name}: rows {seen[task.id]} and {number} of {split!r} are both {task.id}")
        seen[task.id] = number
    return tasks


def infer_type(name: str) -> str:
    """The dataset type that a hub id, file name or bundled name speaks of; DataError when it speaks of none."""
    for text in (name.replace("\\", "/").rsplit("/", 1)[-1].lower(), name.lower()):
        for part, dataset_type in _TYPE_BY_NAME.items():
            if part in text:
                return dataset_type
    raise DataError(f"dataset.type cannot be told from the name {name!r}: set it ({_available()})")


def _available() -> str:
    return f"available: {', '.join(DATASET_TYPES)}"


__all__ = ["DataError", "check_dataset", "infer_type", "load_tasks", "needs_download"]
