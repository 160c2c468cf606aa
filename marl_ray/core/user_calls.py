"""Calls of functions that users give, such as reward functions and tools.

A function of a user may take any time, so no call runs in the thread of an event loop that has other work. There are
two places:

| place | for | if a call overruns its deadline |
|---|---|---|
| the main thread, while `run_coroutine` runs the event loop in another thread | reward functions | it is interrupted |
| a daemon thread per call | tools, and reward functions without `run_coroutine` | it goes on, and nothing waits |

An `async` function runs in the event loop of its place. In the main thread, a function that blocks instead of awaiting
is interrupted after a deadline.

Python delivers signals in the main thread alone. Many graders limit their time with `signal.alarm`, which fails in any
other thread, and some of them then return a reward of 0 without a word.
"""

from __future__ import annotations

import asyncio
import contextvars
import signal
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future, wait
from contextlib import suppress
from types import FrameType
from typing import Any, TypeVar

from marl_ray.core.concurrency import DeadlineExceeded

R = TypeVar("R")

INTERRUPT = signal.SIGURG
"""The signal that interrupts a call in the main thread. Python ignores this signal by default."""
REPEAT_S = 1.0
"""Seconds until a call that has caught its interruption is interrupted again."""


class CalledExit(RuntimeError):
    """Raised in place of SystemExit, which would end the process without a word."""


class Interrupted(BaseException):
    """Raised within a call in the main thread that has overrun its deadline. Not an `Exception`, so that a grader's
    `except Exception` does not catch it."""


class MainThread:
    """The main thread while it serves calls. Its event loop runs nothing but functions of users."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._current: Future[Any] | None = None
        """The running call of a plain function."""
        self._unwanted: Future[Any] | None = None
        """The call that should be interrupted."""
        self._is_blocked = False
        """Whether an awaitable keeps the event loop from running after the end of a deadline."""

    def serve(self, work: threading.Thread, until: Future[R]) -> R:
        """Start the thread `work`, execute calls until `until` is done, and return its result."""
        global _serving
        previous_handler = signal.signal(INTERRUPT, self._handle)
        # In a notebook, a loop runs in this thread already and waits for this call.
        outer_loop = asyncio._get_running_loop()
        asyncio._set_running_loop(None)
        # The operating system may deliver a signal to another thread, which must wake this one.
        read_end, write_end = socket.socketpair()
        read_end.setblocking(False)
        write_end.setblocking(False)
        self._loop.add_reader(read_end, lambda: read_end.recv(4096))
        previous_wakeup = signal.set_wakeup_fd(write_end.fileno(), warn_on_full_buffer=False)
        _serving = self
        try:
            until.add_done_callback(lambda _: self._loop.call_soon_threadsafe(self._loop.stop))
            work.start()
            self._loop.run_forever()
            return until.result(timeout=0)
        finally:
            _serving = None
            for task in asyncio.all_tasks(self._loop):
                task.cancel()
            self._loop.run_until_complete(asyncio.sleep(0))  # the tasks see their cancellation
            signal.set_wakeup_fd(previous_wakeup)
            self._loop.remove_reader(read_end)
            self._loop.close()
            read_end.close()
            write_end.close()
            asyncio._set_running_loop(outer_loop)
            signal.signal(INTERRUPT, previous_handler)

    async def call(self, function: Callable[[], Any]) -> Any:
        """Return the result of a plain function. Cancelling this coroutine interrupts the function."""
        future = self._submit(function)
        try:
            value, error = await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            self._interrupt(future)
            raise
        if isinstance(error, Interrupted):  # by a call that waited for it in the thread of the event loop
            raise DeadlineExceeded("it was interrupted, because another function of the user waited for it")
        if error is not None:
            raise error
        return value

    async def result_of(self, awaitable: Awaitable[R]) -> R:
        """Return the result of an awaitable, which runs in the event loop of the main thread."""

        future = asyncio.run_coroutine_threadsafe(_awaited(awaitable), self._loop)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            threading.Thread(target=self._unblock, name="watch of the main thread", daemon=True).start()
            raise

    def _unblock(self) -> None:
        """Interrupt an awaitable that keeps the event loop of the main thread from running."""
        answered = threading.Event()
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(answered.set)
        while _serving is self and not answered.wait(REPEAT_S):
            self._is_blocked = True
            signal.pthread_kill(threading.main_thread().ident or 0, INTERRUPT)
        self._is_blocked = False

    def call_blocking(self, function: Callable[[], Any], timeout_s: float, name: str) -> Any:
        """Return the result of a plain function, while the calling thread waits. Raises DeadlineExceeded after
        `timeout_s`, and for a call that is running when this one starts after `timeout_s` too: the event loop of the
        calling thread, which knows the deadline of that call, does not run meanwhile."""
        future = self._submit(function)
        wait([future], timeout_s)
        earlier = self._current
        if earlier is not None and earlier is not future and not future.running():
            self._interrupt_and_wait(earlier, timeout_s)
            wait([future], timeout_s)
        if not future.done():
            if not future.cancel():
                self._interrupt_and_wait(future, timeout_s)
            raise DeadlineExceeded.after(timeout_s, name, "")
        value, error = future.result()
        if error is not None:
            raise error
        return value

    def _interrupt_and_wait(self, future: Future[Any], timeout_s: float) -> None:
        """Interrupt a call until it has ended, at most for `timeout_s`, while the calling thread waits."""
        self._unwanted = future
        end = time.monotonic() + timeout_s
        while self._current is future and time.monotonic() < end:
            signal.pthread_kill(threading.main_thread().ident or 0, INTERRUPT)
            wait([future], min(REPEAT_S, timeout_s))

    def _submit(self, function: Callable[[], Any]) -> Future[Any]:
        """Return the future result of a plain function: its value, and its exception or None."""
        future: Future[Any] = Future()
        self._loop.call_soon_threadsafe(self._execute, function, future)
        return future

    def _execute(self, function: Callable[[], Any], future: Future[Any]) -> None:
        if not future.set_running_or_notify_cancel():
            return
        result: tuple[Any, BaseException | None]
        # The function may call `asyncio.run`, which refuses to start within a running loop.
        asyncio._set_running_loop(None)
        try:
            self._current = future
            try:
                if self._unwanted is future:
                    raise Interrupted
                result = _called(function), None
            finally:
                self._current = None
                asyncio._set_running_loop(self._loop)
        except BaseException as error:
            # As a value: a future refuses some exceptions, such as StopIteration.
            result = None, error
        future.set_result(result)

    def _interrupt(self, future: Future[Any]) -> None:
        """Interrupt a call until it has ended. Called in another thread, in which an event loop runs."""
        self._unwanted = future
        if self._current is future:
            signal.pthread_kill(threading.main_thread().ident or 0, INTERRUPT)
            asyncio.get_running_loop().call_later(REPEAT_S, self._interrupt, future)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._current is not None and self._current is self._unwanted:
            raise Interrupted
        if self._is_blocked and _runs_an_awaitable(frame):
            raise Interrupted


_serving: MainThread | None = None
"""The main thread, while it serves calls."""


def run_coroutine(work: Callable[[], Coroutine[Any, Any, R]]) -> R:
    """Return the result of `asyncio.run(work())`, which runs in another thread. The main thread serves calls meanwhile,
    if this is the main thread."""
    context = contextvars.copy_context()
    done: Future[R] = Future()

    def run() -> None:
        try:
            result = context.run(lambda: asyncio.run(work()))
        except BaseException as error:
            done.set_exception(error)
        else:
            done.set_result(result)

    thread = threading.Thread(target=run, name="event loop", daemon=True)
    if threading.current_thread() is threading.main_thread():
        return MainThread().serve(thread, done)
    thread.start()
    return done.result()


def _called(function: Callable[[], R]) -> R:
    """Return the result of a function. Raises CalledExit."""
    try:
        return function()
    except SystemExit as error:
        raise CalledExit(f"it called sys.exit({error.code!r})") from None


async def _awaited(awaitable: Awaitable[R]) -> R:
    """Return the result of an awaitable. Raises CalledExit, and DeadlineExceeded if the awaitable was interrupted."""
    try:
        return await awaitable
    except SystemExit as error:
        raise CalledExit(f"it called sys.exit({error.code!r})") from None
    except Interrupted:
        raise DeadlineExceeded("it was interrupted, because it blocked instead of awaiting") from None


def _runs_an_awaitable(frame: FrameType | None) -> bool:
    """Return whether a frame belongs to a step of `_awaited`, and not to the event loop itself."""
    while frame is not None:
        if frame.f_code is _awaited.__code__:
            return True
        frame = frame.f_back
    return False


async def call_user_function(function: Callable[[], Any]) -> Any:
    """Return the result of a plain function in the main thread, or else in a daemon thread."""
    if _serving is not None:
        return await _serving.call(function)
    return await call_in_daemon_thread(function)


async def result_of_user_function(awaitable: Awaitable[R]) -> R:
    """Return the result of an awaitable in the main thread, or else in this event loop."""
    return await (_awaited(awaitable) if _serving is None else _serving.result_of(awaitable))


def call_user_function_blocking(function: Callable[[], Any], timeout_s: float, name: str) -> Any:
    """Return the result of a plain function in the main thread, or else in this thread. Raises DeadlineExceeded."""
    if _serving is None or threading.current_thread() is threading.main_thread():
        return _called(function)
    return _serving.call_blocking(function, timeout_s, name)


async def call_in_daemon_thread(function: Callable[[], Any]) -> Any:
    """Return the result of a call in a thread of its own. A call that has overrun its deadline neither occupies a pool
    that others share nor keeps the process from ending."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()

    def settle(value: Any, error: BaseException | None) -> None:
        if not done.done():
            done.set_result((value, error))

    def run() -> None:
        value, failure = None, None
        try:
            value = _called(function)
        except BaseException as error:
            failure = error
        with suppress(RuntimeError):  # the loop has ended after a timeout
            loop.call_soon_threadsafe(settle, value, failure)

    threading.Thread(target=run, name="function of the user", daemon=True).start()
    value, error = await done
    if error is not None:
        raise error
    return value
