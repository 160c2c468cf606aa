"""Tasks of a window of time, for benchmarks whose problems have dates: a model cannot have seen later problems."""

from __future__ import annotations

import datetime
from collections.abc import Sequence

from marl_ray.core.episode import Task
from marl_ray.core.errors import UserError

DATE = "date"
"""Field of a task with the day on which its problem was published, as YYYY-MM-DD."""


def parse_date(text: str, what: str) -> datetime.date:
    """Return the day of an ISO date, with or without a time. Raises UserError that names `what`."""
    try:
        return datetime.date.fromisoformat(text.strip()[:10])
    except ValueError:
        raise UserError(f"{what} should be a date like 2024-08-31, got {text!r}") from None


def within_dates(tasks: Sequence[Task], since: str | None, until: str | None) -> list[Task]:
    """Return the tasks from day `since` to day `until`, both included; None: no bound. Raises UserError if a task has
    no date, or no task is in the window."""
    if since is None and until is None:
        return list(tasks)
    first = datetime.date.min if since is None else parse_date(since, "--since")
    last = datetime.date.max if until is None else parse_date(until, "--until")
    for task in tasks:
        if not task.fields.get(DATE):
            raise UserError(f"task {task.id} has no date (field contest_date): leave out --since and --until")
    found = []
    for task in tasks:
        date = parse_date(task.fields[DATE], f"the date of task {task.id}")
        if first <= date <= last:
            found.append(task)
    if not found:
        raise UserError(f"none of {len(tasks)} tasks is from {since or 'the beginning'} to {until or 'now'}")
    return found
