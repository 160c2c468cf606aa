"""Being stopped: Ctrl-C (SIGINT) and SIGTERM, at any moment of a run, in the same way.

| when | the first signal | a second one |
|---|---|---|
| the loop runs | cancels its work, which ends in order | kills the process |
| anything else runs | raises in it | kills the process |

A run that was stopped exits with 128 plus the signal's number: 130 and 143. So does, for a shell, one that was killed.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine
from types import FrameType
from typing import Any, Self, TypeVar

from marl_ray.core.errors import Terminated

R = TypeVar("R")


class StopSignals:
    """Has SIGINT and SIGTERM while it is entered. For the main thread; a signal that is ignored stays so, as that of a
    shell's background jobs."""

    def __init__(self) -> None:
        self.came: int | None = None
        """The signal that asked for the end."""
        self._running = False
        """A loop is there, or about to be: a signal is then for it to take, and raises nowhere."""
        self._work: asyncio.Task[Any] | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(number) != signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._take)
        return self

    def __exit__(self, *raised: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def run(self, work: Callable[[], Coroutine[Any, Any, R]]) -> R:
        """`asyncio.run(work())`, in which a signal cancels the work. What then becomes of it, done or failed by that,
        is the interruption: raises KeyboardInterrupt, Terminated for SIGTERM."""
        self._running = True
        try:
            result = asyncio.run(self._cancellable(work))
        except (Exception, asyncio.CancelledError):
            if self.came is None:
                raise
            raise self.interruption() from None
        finally:
            self._running = False
        if self.came is not None:
            raise self.interruption()
        return result

    def interruption(self) -> KeyboardInterrupt:
        """What to raise for the signal that came."""
        return Terminated() if self.came == signal.SIGTERM else KeyboardInterrupt()

    async def _cancellable(self, work: Callable[[], Coroutine[Any, Any, R]]) -> R:
        self._work = asyncio.ensure_future(work())
        if self.came is not None:  # before there was anything to cancel
            self._work.cancel()
        try:
            return await self._work
        finally:
            self._work = None

    def _take(self, number: int, frame: FrameType | None) -> None:
        """Called by Python in the main thread, between two instructions of whatever runs there."""
        self.came = number
        for taken in self._before:
            signal.signal(taken, signal.SIG_DFL)
        if not self._running:
            raise self.interruption()
        if self._work is not None:
            self._work.cancel()
            self._work.get_loop().call_soon_threadsafe(lambda: None)  # it may be asleep
