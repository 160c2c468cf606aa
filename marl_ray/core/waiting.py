"""Waiting for actors: never without a deadline, and never leaving a failure behind unseen."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

T = TypeVar("T")


class WaitExpired(RuntimeError):
    """A wait ran past its deadline."""


async def within(deadline_s: float, waited_for: str, setting: str, awaitable: Awaitable[T]) -> T:
    """The awaitable's result, or WaitExpired that names who was waited for and the setting."""
    try:
        return await asyncio.wait_for(awaitable, deadline_s)
    except TimeoutError:
        raise WaitExpired(
            f"waited {deadline_s:g} s for {waited_for}, in vain (resources.deadlines.{setting})"
        ) from None


async def together(*awaitables: Awaitable[Any]) -> list[Any]:
    """All results in order. At the first failure the others are cancelled, and it alone is raised."""
    tasks = [asyncio.ensure_future(awaitable) for awaitable in awaitables]
    try:
        return list(await asyncio.gather(*tasks))
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
