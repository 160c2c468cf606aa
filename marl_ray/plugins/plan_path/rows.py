"""The dataset type of rooms."""

from __future__ import annotations

from marl_ray.core.episode import Task
from marl_ray.core.errors import UserError
from marl_ray.data.convert import Conversion, id_of, lines_of
from marl_ray.data.loading import DataRow
from marl_ray.plugins.plan_path.prompts import description
from marl_ray.plugins.plan_path.rooms import read_room, solution


def _room(row: DataRow, number: int) -> Task:
    """Convert a row with `room`, a list of rows of symbols (`marl_ray.plugins.plan_path.rooms`)."""
    task_id = id_of(row, "plan_path", number)
    rows = lines_of(row, "room")
    if not rows:
        raise UserError(f"task {task_id} has no room (field room, a list of rows of symbols)")
    try:
        room = read_room(rows)
        moves = solution(room, room.start)
    except ValueError as error:
        raise UserError(f"task {task_id}: {error}") from None
    if not moves:
        raise UserError(f"task {task_id}: the room has no solution, or is solved already")
    return Task(task_id, description(rows), {"room": rows})


PLAN_PATH = Conversion("plan_path", _room)
