"""asyncio helpers: deadlines, conditions, and task groups that raise the first failure alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from marl_ray.core.errors import UserError

T = TypeVar("T")


class DeadlineExceeded(UserError):
    """A wait that took longer than its deadline."""

    @classmethod
    def after(cls, deadline_s: float, waited_for: str, setting: str) -> DeadlineExceeded:
        """Return the error. `setting` is a key of resources.deadlines, or empty if no setting holds the deadline."""
        hint = f" (resources.deadlines.{setting})" if setting else ""
        return cls(f"timed out after {deadline_s:g} s waiting for {waited_for}{hint}")


def now() -> float:
    """Return the time of the running event loop, in seconds."""
    return asyncio.get_running_loop().time()


async def wait_within(deadline_s: float, waited_for: str, setting: str, awaitable: Awaitable[T]) -> T:
    """Return the result of `awaitable`. Raises DeadlineExceeded after `deadline_s` seconds."""
    try:
        async with asyncio.timeout(deadline_s) as timeout:
            return await awaitable
    except TimeoutError:
        if not timeout.expired():
            raise  # raised by the awaitable itself
        raise DeadlineExceeded.after(deadline_s, waited_for, setting) from None


class Condition:
    """A condition variable for tasks of one event loop, without a lock and without a deadline."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()

    def notify_all(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def wait_for(self, predicate: Callable[..., bool], *args: Any) -> None:
        """Return as soon as `predicate(*args)` is true, immediately if it already is."""
        while not predicate(*args):
            await self._changed.wait()


class ReadWriteLock:
    """A lock for tasks of one event loop that either one task holds alone (`exclusive`) or several share (`shared`).

    Tasks are served in the order of their requests, so neither kind waits forever: a task that comes after a waiting
    exclusive one waits too.
    """

    def __init__(self) -> None:
        self._turn = asyncio.Lock()  # which is fair
        self._condition = Condition()
        self._sharing = 0

    @asynccontextmanager
    async def exclusive(self) -> AsyncIterator[None]:
        """Hold the lock alone."""
        async with self._turn:
            await self._condition.wait_for(lambda: self._sharing == 0)
            yield

    @asynccontextmanager
    async def shared(self) -> AsyncIterator[None]:
        """Hold the lock together with other tasks that share it."""
        async with self._turn:
            self._sharing += 1
        try:
            yield
        finally:
            self._sharing -= 1
            self._condition.notify_all()


async def run_with_background(work: Awaitable[T], background: Awaitable[object]) -> T:
    """Return the result of `work`, then cancel `background`. If `background` fails first, cancel `work` and raise."""
    main = asyncio.ensure_future(work)
    other = asyncio.ensure_future(background)
    try:
        await asyncio.wait({main, other}, return_when=asyncio.FIRST_COMPLETED)
        if not main.done():
            other.result()
        return await main
    finally:
        for task in (main, other):
            task.cancel()
        await asyncio.gather(main, other, return_exceptions=True)


@asynccontextmanager
async def task_group() -> AsyncIterator[asyncio.TaskGroup]:
    """Run an `asyncio.TaskGroup` that raises the first failure itself instead of an exception group."""
    failure: BaseException | None = None
    try:
        async with asyncio.TaskGroup() as group:
            yield group
    except BaseExceptionGroup as failures:
        failure = failures.exceptions[0]
    if failure is not None:
        raise failure


async def gather(*awaitables: Awaitable[Any]) -> list[Any]:
    """Return all results in order. At the first failure, cancel the others, wait for them and raise.

    Cancelling the call cancels each of them once: a second cancellation would interrupt their cleanup.
    """
    tasks = [asyncio.ensure_future(awaitable) for awaitable in awaitables]
    try:
        return list(await asyncio.gather(*tasks))
    except BaseException:
        for task in tasks:
            if not (isinstance(task, asyncio.Task) and task.cancelling()):
                task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
