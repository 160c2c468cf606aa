"""Random numbers are a function of the seed and the stream's name; an epoch covers every task once."""

from __future__ import annotations

from marl_ray.core.random_streams import random_stream, stream_seed, tasks_for_step


def test_streams_are_named_and_repeatable() -> None:
    assert stream_seed(1, "a", 2) == stream_seed(1, "a", 2)
    assert len({stream_seed(s, n, k) for s in (1, 2) for n in ("a", "b") for k in (0, 1)}) == 8
    assert 0 <= stream_seed(7, "x") < 2**62
    assert random_stream(3, "h").random() == random_stream(3, "h").random()


def test_an_epoch_takes_every_task_once_in_a_new_order() -> None:
    epochs = [[i for step in range(e * 4, e * 4 + 4) for i in tasks_for_step(10, 3, step, seed=5)] for e in range(3)]
    assert all(sorted(epoch) == list(range(10)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]
    assert len(tasks_for_step(10, 3, 3, seed=5)) == 1


def test_the_position_in_the_data_follows_from_the_step_alone() -> None:
    assert tasks_for_step(10, 3, 7, seed=5) == tasks_for_step(10, 3, 7, seed=5)
