"""Windows of time over tasks with dates."""

from __future__ import annotations

import pytest

from marl_ray.core.episode import Task
from marl_ray.core.errors import UserError
from marl_ray.data.date_windows import within_dates


def dated(*days: str) -> list[Task]:
    return [Task(day, "p", {"date": day}) for day in days]


@pytest.mark.parametrize(
    ("since", "until", "expected"),
    [
        (None, None, ["2024-07-31", "2024-08-01", "2024-12-31"]),
        ("2024-08-01", None, ["2024-08-01", "2024-12-31"]),
        (None, "2024-08-01", ["2024-07-31", "2024-08-01"]),
        ("2024-08-01", "2024-08-31", ["2024-08-01"]),
    ],
)
def test_both_days_belong_to_the_window(since: str | None, until: str | None, expected: list[str]) -> None:
    tasks = dated("2024-07-31", "2024-08-01", "2024-12-31")
    assert [task.id for task in within_dates(tasks, since, until)] == expected


@pytest.mark.parametrize(
    ("tasks", "since", "message"),
    [
        (dated("2024-01-01"), "soon", "--since should be a date like 2024-08-31, got 'soon'"),
        (dated("2024-01-01"), "2025-01-01", "none of 1 tasks is from 2025-01-01 to now"),
        ([Task("t", "p", {})], "2024-01-01", "task t has no date"),
    ],
)
def test_windows_that_cannot_be_applied_are_rejected(tasks: list[Task], since: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        within_dates(tasks, since, None)
