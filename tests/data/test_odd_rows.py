"""Rows with values of other types: every dataset type makes a task of a row, or refuses it in one line."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Mapping
from typing import Any

import pytest

from marl_ray import registry
from marl_ray.core.errors import UserError
from marl_ray.data import DATASETS
from marl_ray.toy import TASKS_PATH

Row = dict[str, Any]
ODD = [
    *(None, 3, -1, 1.5, True, float("nan"), 10**400),
    *("", "x", "[1", "\ud800"),
    *([], [[]], [None], [3], [{}], {}, {"a": [1]}),
]
CHANGES = 200
"""Changed rows per type and kind of row."""


def rows() -> list[Row]:
    """Return one row of every bundled data set."""
    found = []
    for path in (TASKS_PATH, *registry.bundled_rows().values()):
        with path.open(encoding="utf-8") as file:
            found.append(json.loads(file.readline()))
    return found


def changed(value: Any, draw: random.Random) -> Any:
    """Return a value with an odd one in one place of it, or in its stead."""
    if draw.random() < 0.6 and value and isinstance(value, dict | list):
        inside = copy.copy(value)
        place = draw.choice(list(value)) if isinstance(value, Mapping) else draw.randrange(len(value))
        inside[place] = changed(value[place], draw)
        return inside
    return draw.choice(ODD)


def problem_of(name: str, row: Row) -> str:
    """Return why a row is refused; nothing if it is a task."""
    try:
        DATASETS.get(name).task(row, 0)
    except UserError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("name", DATASETS.entries)
def test_an_odd_row_is_a_task_or_an_error_of_one_line(name: str) -> None:
    draw = random.Random(name)
    for row in rows():
        for _ in range(CHANGES):
            field = draw.choice(list(row))
            odd = row | {field: changed(row[field], draw)}
            message = problem_of(name, odd)
            assert len(message.splitlines()) <= 1
