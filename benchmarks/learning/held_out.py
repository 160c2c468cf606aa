"""The hard toy tasks with four times as many held-out tasks: `dataset.name: python:benchmarks.learning.held_out:TASKS`.

The split `train` is that of `bundled:toy-hard`. Its `eval` and `unseen` are parts of `eval` and `unseen` here.
"""

from __future__ import annotations

from functools import cached_property

from marl_ray.data.loading import DataRow, load_rows
from tools.toy.hard_families import held_out_problems
from tools.toy.make_tasks import task_row


class HardTasks:
    """A source of rows for `dataset.name`."""

    @cached_property
    def splits(self) -> dict[str, list[DataRow]]:
        splits = {"train": load_rows("bundled:toy-hard", "train")}
        for split, problems in held_out_problems().items():
            splits[split] = [
                task_row(problem, f"{split}/{number:03d}", split) for number, problem in enumerate(problems)
            ]
        return splits


TASKS = HardTasks()
