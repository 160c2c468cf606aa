"""Dataset types of environments that read a text."""

from __future__ import annotations

from functools import partial

from marl_ray.core.episode import Task
from marl_ray.core.errors import UserError
from marl_ray.data.convert import Conversion, id_of, text_of
from marl_ray.data.loading import DataRow


def _text(dataset: str, field: str, row: DataRow, number: int) -> Task:
    """Convert a row with a text in `field`."""
    task_id = id_of(row, dataset, number, "id")
    text = text_of(row, field)
    if not text:
        raise UserError(f"task {task_id} has no text (field {field})")
    return Task(task_id, text.strip(), {})


TAGS = Conversion("tags", partial(_text, "tags", "text"))
TLDR = Conversion("writing_tldr", partial(_text, "tldr", "prompt"))
ARXIV = Conversion("writing_arxiv", partial(_text, "arxiv", "abstract_text"))
