"""From a dataset's name and split to tasks."""

from __future__ import annotations

from marl_ray.core.episode import Task
from marl_ray.core.errors import UserError
from marl_ray.data import DATASETS, infer_type
from marl_ray.data.convert import DatasetType
from marl_ray.data.tables import load_rows


def load_tasks(name: str, split: str, dataset_type: str | None = None) -> list[Task]:
    """The tasks of a split, in the dataset's order.

    `name` is a hub id, the path of a .jsonl or .parquet file (whose one split is `test` and answers to `train`
    too), `bundled:toy` or `bundled:toy-hard`. `split` may hold a slice: `test[33:163]`. Every row is checked by its
    type, and has an id of its own. Raises UserError.
    """
    kind: DatasetType = DATASETS.get(infer_type(name) if dataset_type is None else dataset_type)
    tasks = [kind.task(row, number) for number, row in enumerate(load_rows(name, split))]
    seen: dict[str, int] = {}
    for number, task in enumerate(tasks):
        if task.id in seen:
            raise UserError(f"dataset {name}: rows {seen[task.id]} and {number} of {split!r} are both {task.id}")
        seen[task.id] = number
    return tasks
