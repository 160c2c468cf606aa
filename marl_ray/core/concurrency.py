"""Waiting for others: never without a deadline, and never leaving a failure behind unseen."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from marl_ray.core.errors import UserError

T = TypeVar("T")


class DeadlineExceeded(UserError):
    """A wait ran past its deadline. The text names who was waited for, and the setting if there is one."""

    @classmethod
    def after(cls, deadline_s: float, waited_for: str, setting: str) -> DeadlineExceeded:
        """`setting` is a name in resources.deadlines, or empty where the deadline is none of the config's."""
        hint = f" (resources.deadlines.{setting})" if setting else ""
        return cls(f"waited {deadline_s:g} s for {waited_for}, in vain{hint}")


def now() -> float:
    """Seconds on the running event loop's clock, by which all waits are measured."""
    return asyncio.get_running_loop().time()


async def wait_within(deadline_s: float, waited_for: str, setting: str, awaitable: Awaitable[T]) -> T:
    """The awaitable's result. Raises DeadlineExceeded when it takes longer, and whatever the awaitable raises."""
    try:
        async with asyncio.timeout(deadline_s) as timeout:
            return await awaitable
    except TimeoutError:
        if not timeout.expired():
            raise  # its own
        raise DeadlineExceeded.after(deadline_s, waited_for, setting) from None


class Condition:
    """Conditions on what coroutines of one event loop share. Who changes it tells; whoever waits looks again.

    There is no deadline here: what these coroutines in their turn wait for has some.

    Example:
        >>> async def wait_for_three(condition, found):
        ...     await condition.wait_for(lambda: len(found) == 3)
    """

    def __init__(self) -> None:
        self._changed = asyncio.Event()

    def notify_all(self) -> None:
        """Something has changed."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def wait_for(self, holds: Callable[[], bool]) -> None:
        """Returns as soon as it holds, at once if it does already."""
        while not holds():
            await self._changed.wait()


async def run_with_background(work: Awaitable[T], companion: Awaitable[None]) -> T:
    """The result of `work`. Its companion, which has no end of its own, is cancelled then; where that fails before,
    `work` is cancelled and the failure raised."""
    doing, beside = asyncio.ensure_future(work), asyncio.ensure_future(companion)
    try:
        await asyncio.wait({doing, beside}, return_when=asyncio.FIRST_COMPLETED)
        if not doing.done():
            beside.result()
        return await doing
    finally:
        for task in (doing, beside):
            task.cancel()
        await asyncio.gather(doing, beside, return_exceptions=True)


@asynccontextmanager
async def task_group() -> AsyncIterator[asyncio.TaskGroup]:
    """Tasks that are begun on the way (`create_task`); at its end all are waited for. At the first failure the others
    are cancelled, and it alone is raised."""
    failure: BaseException | None = None
    try:
        async with asyncio.TaskGroup() as group:
            yield group
    except BaseExceptionGroup as failures:
        failure = failures.exceptions[0]
    if failure is not None:
        raise failure


async def gather(*awaitables: Awaitable[Any]) -> list[Any]:
    """All results in order. At the first failure the others are cancelled, and it alone is raised."""
    tasks = [asyncio.ensure_future(awaitable) for awaitable in awaitables]
    try:
        return list(await asyncio.gather(*tasks))
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
