"""Named random streams of one seed.

A random number is a pure function of the seed and the stream's name. A resumed run therefore needs no generator state,
and the order of events does not affect results.
"""

from __future__ import annotations

import hashlib
import random


def stream_seed(seed: int, *name: str | int) -> int:
    """Return the 62-bit seed of the stream called `name`."""
    digest = hashlib.sha256(repr((seed, *name)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 2


def random_stream(seed: int, *name: str | int) -> random.Random:
    """Return a generator for the stream called `name`."""
    return random.Random(stream_seed(seed, *name))


def task_for_sample(count: int, sample: int, seed: int) -> int:
    """Return the task index of prompt sample `sample` (from 0). Each epoch is one permutation of `count` tasks."""
    epoch, position = divmod(sample, count)
    return _epoch(count, epoch, seed)[position]


def tasks_for_step(count: int, batch: int, step: int, seed: int) -> list[int]:
    """Return the indices of the tasks of step `step` (from 0): each epoch is one permutation, cut into batches."""
    epoch, position = divmod(step, -(-count // batch))
    return _epoch(count, epoch, seed)[position * batch : (position + 1) * batch]


def _epoch(count: int, epoch: int, seed: int) -> list[int]:
    order = list(range(count))
    random_stream(seed, "data", epoch).shuffle(order)
    return order
