"""Stopping a command with Ctrl-C (SIGINT), SIGTERM or SIGHUP (a closed terminal).

| while | the first signal | the second signal |
|---|---|---|
| the event loop runs | cancels its work, which shuts down in order | kills the process |
| other code runs | raises KeyboardInterrupt or Terminated | kills the process |

A stopped command exits with 128 plus the signal's number: 130, 143 or 129. Errors after the signal follow from it, such
as the loss of Ray's processes to which a batch system sends the same signal: they become the interruption.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn, Self, TypeVar

from marl_ray.core.errors import Terminated
from marl_ray.core.user_calls import run_coroutine

R = TypeVar("R")

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopSignals:
    """A context manager that handles STOP_SIGNALS in the main thread, unless they are ignored. In another thread, which
    receives no signals, it does nothing."""

    def __init__(self) -> None:
        self.received: int | None = None
        """The signal that requested the stop."""
        self._running = False
        """Whether an event loop runs or is about to: a signal then cancels its work instead of raising."""
        self._work: asyncio.Task[Any] | None = None
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is not threading.main_thread():
            return self
        for number in STOP_SIGNALS:
            if signal.getsignal(number) != signal.SIG_IGN:  # as under nohup
                self._previous[number] = signal.signal(number, self._take)
        return self

    def __exit__(self, type: object, error: BaseException | None, traceback: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        if self.received is not None and isinstance(error, Exception):
            raise self.interruption() from None

    def run(self, work: Callable[[], Coroutine[Any, Any, R]]) -> R:
        """Return the result of `run_coroutine(work)`, which a signal cancels. After a signal, raises KeyboardInterrupt
        or Terminated, however the work ends."""
        self._running = True
        try:
            with self.replace_errors():
                result = run_coroutine(lambda: self._cancellable(work))
        finally:
            self._running = False
        if self.received is not None:
            raise self.interruption()
        return result

    @contextmanager
    def replace_errors(self) -> Iterator[None]:
        """Raise the interruption in place of an error that follows a signal."""
        try:
            yield
        except (Exception, asyncio.CancelledError):
            if self.received is None:
                raise
            raise self.interruption() from None

    def interruption(self) -> KeyboardInterrupt:
        """Return the exception for the received signal."""
        if self.received is None or self.received == signal.SIGINT:
            return KeyboardInterrupt()
        return Terminated(self.received)

    def exit_process(self, error: str) -> NoReturn:
        """End the process at once, without any cleanup: with `error` and 1, or, after a signal from which the error
        follows, with the signal's code."""
        if self.received is not None:
            os._exit(128 + self.received)
        print(f"error: {error}", file=sys.stderr, flush=True)
        os._exit(1)

    async def _cancellable(self, work: Callable[[], Coroutine[Any, Any, R]]) -> R:
        self._work = asyncio.ensure_future(work())
        if self.received is not None:  # before the work existed
            self._work.cancel()
        try:
            return await self._work
        finally:
            self._work = None

    def _take(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal. Python calls this in the main thread between two bytecode instructions."""
        self.received = number
        for handled in self._previous:
            signal.signal(handled, signal.SIG_DFL)
        if not self._running:
            raise self.interruption()
        if self._work is not None:
            self._work.get_loop().call_soon_threadsafe(self._work.cancel)  # also wakes a sleeping loop
