"""Named streams of randomness, all from one seed.

Each draw is a pure function of the seed and of what it is for, so a resumed run needs no state to go on with
the same numbers, and the order in which things happen does not matter.
"""

from __future__ import annotations

import hashlib
import random


def stream_seed(seed: int, *name: str | int) -> int:
    """A 62-bit number for the stream called `name`."""
    digest = hashlib.sha256(repr((seed, *name)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 2


def random_stream(seed: int, *name: str | int) -> random.Random:
    """A generator for the stream called `name`."""
    return random.Random(stream_seed(seed, *name))


def task_for_sample(count: int, draw: int, seed: int) -> int:
    """Index of the task of draw number `draw` (from 0): each epoch is one permutation, and no batch ends it."""
    epoch, place = divmod(draw, count)
    return _epoch(count, epoch, seed)[place]


def tasks_for_step(count: int, batch: int, step: int, seed: int) -> list[int]:
    """Indices of the tasks of step number `step` (from 0): each epoch is one permutation, cut into batches.

    The last batch of an epoch may be smaller.
    """
    steps_per_epoch = -(-count // batch)
    epoch, place = divmod(step, steps_per_epoch)
    return _epoch(count, epoch, seed)[place * batch : (place + 1) * batch]


def _epoch(count: int, epoch: int, seed: int) -> list[int]:
    order = list(range(count))
    random_stream(seed, "data", epoch).shuffle(order)
    return order
