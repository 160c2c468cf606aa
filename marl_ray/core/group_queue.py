"""The queue between the rollout tasks and one policy's learner."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from marl_ray.core.batch import Batch, Group
from marl_ray.core.concurrency import Condition, now


class GroupQueue:
    """The completion groups of one policy's batch, in the order in which the learner accumulates their gradients.

    The producer puts groups while other episodes of the batch still run, and closes the queue with the complete batch
    once that batch is in the batch log and the policy may learn from it. Reading does not remove groups: a learner that
    is lost in the middle of a batch starts again with `get(0)`.

    Example:
        >>> async def read(queue):
        ...     position = 0
        ...     while groups := await queue.get(position):
        ...         position += len(groups)
        ...     return await queue.batch()
    """

    def __init__(self, step: int) -> None:
        self.step = step
        """Number of the batch, from 0."""
        self.waited_s = 0.0
        """Seconds that the learner has waited in `get` and `batch`."""
        self._groups: list[Group] = []
        self._batch: Batch | None = None
        self._condition = Condition()

    def __len__(self) -> int:
        return len(self._groups)

    @property
    def closed(self) -> bool:
        """Whether the complete batch is available."""
        return self._batch is not None

    def put(self, groups: Sequence[Group]) -> None:
        """Append groups of the first mini-batch."""
        self._groups += groups
        self._condition.notify_all()

    def close(self, batch: Batch) -> None:
        """Make the complete batch available; no group follows."""
        self._batch = batch
        self._condition.notify_all()

    async def get(self, start: int) -> Sequence[Group]:
        """Return the groups from position `start` on, as soon as there is one; none if the queue is closed first."""
        await self._wait_for(lambda: len(self._groups) > start or self.closed)
        return self._groups[start:]

    async def batch(self) -> Batch:
        """Return the complete batch, once the queue is closed."""
        await self._wait_for(lambda: self.closed)
        assert self._batch is not None
        return self._batch

    async def _wait_for(self, predicate: Callable[[], bool]) -> None:
        started = now()
        await self._condition.wait_for(predicate)
        self.waited_s += now() - started
