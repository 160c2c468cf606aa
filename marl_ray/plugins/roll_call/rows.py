"""Dataset type of roll calls."""

from __future__ import annotations

from marl_ray.core.episode import Task
from marl_ray.core.errors import UserError
from marl_ray.data.convert import Conversion, id_of, lines_of
from marl_ray.data.loading import DataRow


def _roll_call(row: DataRow, number: int) -> Task:
    """Convert a row of a dataset with `rows`, a list of rows of letters of equal length."""
    task_id = id_of(row, "roll_call", number)
    rows = lines_of(row, "rows")
    if not rows or len(set(map(len, rows))) != 1 or not "".join(rows).isalpha():
        raise UserError(f"task {task_id}: its field rows should be a list of rows of letters, all of one length")
    return Task(task_id, "Copy your row.", {"rows": rows})


ROLL_CALL = Conversion("roll_call", _roll_call)
