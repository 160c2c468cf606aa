"""Dataset types of letter grids."""

from __future__ import annotations

from functools import partial

from marl_ray.core.episode import Task
from marl_ray.core.errors import UserError
from marl_ray.data.convert import Conversion, id_of, lines_of, text_of
from marl_ray.data.loading import DataRow
from marl_ray.plugins.grid.prompts import description


def _grid(dataset: str, row: DataRow, number: int) -> Task:
    """Convert a row with `target`, a list of rows of equal length, and `letters`, by default the target's."""
    task_id = id_of(row, dataset, number)
    target = lines_of(row, "target")
    if not target:
        raise UserError(f"task {task_id} has no target (field target, a list of rows)")
    used = set("".join(target))
    letters = text_of(row, "letters") or "".join(sorted(used))
    is_valid = used <= set(letters)
    for letter in letters:
        is_valid = is_valid and letter.isalpha() and letter.islower()
    widths = set(map(len, target))
    if not is_valid or len(widths) != 1:
        raise UserError(f"task {task_id}: the rows of a target need equal lengths and lower-case letters of `letters`")
    prompt = description(len(target), len(target[0]), letters)
    return Task(task_id, prompt, {"target": target, "letters": letters})


GRID = Conversion("grid", partial(_grid, "grid"))
GRID_PRIVATE = Conversion("grid_private", partial(_grid, "grid_private"))
