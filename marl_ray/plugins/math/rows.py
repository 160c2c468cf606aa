"""The dataset type of problems with one short answer: rows with the fields of GSM8K or of MATH."""

from __future__ import annotations

from marl_ray.core.episode import Task
from marl_ray.core.errors import UserError
from marl_ray.data.convert import Conversion, id_of, text_of
from marl_ray.data.loading import DataRow
from marl_ray.plugins.math.answers import stated_answer

IDS = ("unique_id", "id")
PROBLEMS = ("problem", "question")
KINDS = ("type", "subject")


def _math(row: DataRow, number: int) -> Task:
    """Convert a row with `question` and `answer` (GSM8K: a solution that ends with `#### 18`), or with `problem` and
    `solution` (MATH: with `\\boxed{18}`) or `answer`. `level` and `type` or `subject` are kept in the task's fields."""
    task_id = id_of(row, "math", number, *IDS)
    problem = _first_text(row, PROBLEMS)
    if not problem:
        raise UserError(f"task {task_id} has no problem text (field question or problem)")
    reference = _reference(row)
    if not reference:
        raise UserError(f"task {task_id} has no reference answer: answer, or a solution with `####` or \\boxed")
    kind = _first_text(row, KINDS)
    return Task(task_id, problem, {"reference": reference, "level": text_of(row, "level"), "type": kind})


def _first_text(row: DataRow, fields: tuple[str, ...]) -> str:
    for field in fields:
        text = text_of(row, field).strip()
        if text:
            return text
    return ""


def _reference(row: DataRow) -> str:
    """Return the field `answer`, of a whole solution its marked answer; without it the marked answer of `solution`."""
    answer = row.get("answer")
    if isinstance(answer, int | float) and not isinstance(answer, bool):
        return str(answer)
    text = text_of(row, "answer").strip()
    if text and not _is_marked(text):
        return text
    for solution in (text, text_of(row, "solution")):
        if _is_marked(solution):
            return stated_answer(solution)
    return ""


def _is_marked(solution: str) -> bool:
    return any(mark in solution for mark in ("####", "\\boxed{", "\\fbox{"))


MATH = Conversion("math", _math)
