"""The barrier at which the ranks of a learner wait for each other when they start."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from marl_ray.actors.handle import Handle
from marl_ray.actors.learner_actor import LearnerActor
from marl_ray.core.concurrency import Condition, DeadlineExceeded, wait_within
from marl_ray.core.errors import UserError
from marl_ray.core.ids import ActorId


class StartBarrier:
    """A barrier for ranks that restart; the last rank restores all of them."""

    def __init__(self, num_ranks: int) -> None:
        self.arrived: dict[ActorId, Handle[LearnerActor]] = {}
        self._num_ranks = num_ranks
        self._is_over = False
        self._failure: str | None = None
        self._condition = Condition()

    @asynccontextmanager
    async def wait(self, rank: Handle[LearnerActor], deadline_s: float) -> AsyncIterator[bool]:
        """Yield True for the last rank at once, and False for the others after the last rank has left. Raises
        UserError if not all ranks arrive in time, or if the last rank fails."""
        self.arrived[rank.id] = rank
        if len(self.arrived) == self._num_ranks:
            self._condition.notify_all()
            try:
                yield True
            except BaseException as error:
                # The other ranks fail too: they would wait for the last one in their process group.
                self._failure = str(error) or type(error).__name__
                raise
            finally:
                self._is_over = True
                self._condition.notify_all()
            return
        try:
            # A sibling may need several starts. Each failed one counts as a failed start of this rank too.
            complete = self._condition.wait_for(lambda: len(self.arrived) == self._num_ranks)
            await wait_within(deadline_s, f"the ranks beside {rank.id} to start", "start_s", complete)
        except BaseException as error:
            del self.arrived[rank.id]  # so that its next incarnation can take the place
            if isinstance(error, DeadlineExceeded):
                raise UserError(str(error)) from None
            raise
        # Without a deadline: the work of the last rank has its own.
        await self._condition.wait_for(lambda: self._is_over)
        if self._failure is not None:
            raise UserError(f"{rank.id} starts only together with all its ranks: {self._failure}")
        yield False
