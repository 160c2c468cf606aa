"""Dataset types of environments that read a text."""

from __future__ import annotations

from marl_ray.core.episode import Task
from marl_ray.core.errors import UserError
from marl_ray.data.convert import Conversion, id_of, text_of
from marl_ray.data.loading import DataRow


def _tags(row: DataRow, number: int) -> Task:
    """Convert a row with the field `text`."""
    task_id = id_of(row, "tags", number)
    text = text_of(row, "text")
    if not text:
        raise UserError(f"task {task_id} has no text (field text)")
    return Task(task_id, text.strip(), {})


TAGS = Conversion("tags", _tags)
