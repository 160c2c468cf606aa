"""The order of the training tasks: samplers, and the task of each prompt sample."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from marl_ray.core.episode import Task
from marl_ray.core.random_streams import random_stream
from marl_ray.data import SAMPLERS

Sampler = Callable[[Sequence[Task], int, random.Random], Sequence[int]]
"""Returns a permutation of the tasks' indices for an epoch (from 0). A pure function of its arguments."""
KEPT_EPOCHS = 3
"""Number of epochs whose order is kept in memory; the batches in progress are of one or two epochs."""


def shuffled(tasks: Sequence[Task], epoch: int, rng: random.Random) -> list[int]:
    """Return the tasks in a new random order per epoch."""
    order = list(range(len(tasks)))
    rng.shuffle(order)
    return order


def sequential(tasks: Sequence[Task], epoch: int, rng: random.Random) -> list[int]:
    """Return the tasks in the order of the dataset."""
    return list(range(len(tasks)))


class TaskOrder:
    """The tasks of a run in the order of training, which follows from the sampler, the seed and the position alone.

    Each epoch is one permutation of the tasks, cut into batches. Raises ValueError if a sampler returns anything else.
    """

    def __init__(self, tasks: Sequence[Task], sampler: str, seed: int) -> None:
        self._tasks = tasks
        self._name = sampler
        self._seed = seed
        self._sampler: Sampler = SAMPLERS.get(sampler)
        self._epochs: dict[int, list[int]] = {}

    def __len__(self) -> int:
        return len(self._tasks)

    def for_sample(self, sample: int) -> Task:
        """Return the task of prompt sample `sample` (from 0)."""
        epoch, position = divmod(sample, len(self))
        return self._tasks[self._order(epoch)[position]]

    def for_step(self, step: int, batch: int) -> list[Task]:
        """Return the tasks of step `step` (from 0), `batch` tasks or fewer at the end of an epoch."""
        steps_per_epoch = -(-len(self) // batch)  # rounded up: the last batch of an epoch may be smaller
        epoch, position = divmod(step, steps_per_epoch)
        start = position * batch
        return [self._tasks[index] for index in self._order(epoch)[start : start + batch]]

    def _order(self, epoch: int) -> list[int]:
        if epoch not in self._epochs:
            order = list(self._sampler(self._tasks, epoch, random_stream(self._seed, "data", epoch)))
            if sorted(order) != list(range(len(self))):
                raise ValueError(
                    f"sampler {self._name} must return each index from 0 to {len(self) - 1} once, not {order[:20]}"
                )
            for old in list(self._epochs):
                if old <= epoch - KEPT_EPOCHS:
                    del self._epochs[old]
            self._epochs[epoch] = order
        return self._epochs[epoch]
