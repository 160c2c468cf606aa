"""The order of training tasks: an epoch covers every task once, and plug-ins choose the order."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from marl_ray.core.episode import Task
from marl_ray.core.random_streams import random_stream
from marl_ray.data.sampling import TaskOrder

TASKS = [Task(str(number), "x" * (10 - number), {}) for number in range(10)]


def ids(tasks: Sequence[Task]) -> list[int]:
    return [int(task.id) for task in tasks]


def test_an_epoch_takes_every_task_once_in_a_new_order() -> None:
    order = TaskOrder(TASKS, "shuffle", seed=5)
    epochs = [ids([t for step in range(e * 4, e * 4 + 4) for t in order.for_step(step, 3)]) for e in range(3)]
    assert all(sorted(epoch) == list(range(10)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]
    assert len(order.for_step(3, 3)) == 1


def test_the_order_is_that_of_earlier_versions() -> None:
    expected = list(range(10))
    random_stream(5, "data", 1).shuffle(expected)
    order = TaskOrder(TASKS, "shuffle", seed=5)
    assert ids([order.for_sample(sample) for sample in range(10, 20)]) == expected


def test_the_position_in_the_data_follows_from_the_step_alone() -> None:
    order = TaskOrder(TASKS, "shuffle", seed=5)
    for step in (40, 3, 7, 0, 41):
        assert order.for_step(step, 3) == TaskOrder(TASKS, "shuffle", seed=5).for_step(step, 3)


def test_sequential_is_the_order_of_the_dataset() -> None:
    order = TaskOrder(TASKS, "sequential", seed=5)
    assert ids([order.for_sample(sample) for sample in range(12)]) == [*range(10), 0, 1]


def test_a_sampler_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_samplers.py").write_text(
        "def shortest_first(tasks, epoch, rng):\n"
        "    return sorted(range(len(tasks)), key=lambda index: len(tasks[index].prompt))\n"
        "def twice(tasks, epoch, rng):\n    return [0] * len(tasks)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert ids(TaskOrder(TASKS, "own_samplers:shortest_first", 1).for_step(0, 3)) == [9, 8, 7]
    with pytest.raises(ValueError, match="sampler own_samplers:twice must return each index from 0 to 9 once"):
        TaskOrder(TASKS, "own_samplers:twice", 1).for_step(0, 3)
