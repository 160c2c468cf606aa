"""The effects of the first and the second stop signal."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Coroutine
from typing import Any

import pytest

from marl_ray.core.errors import Terminated
from marl_ray.core.stop_signals import StopSignals

SIGNALS = [(signal.SIGTERM, Terminated), (signal.SIGHUP, Terminated), (signal.SIGINT, KeyboardInterrupt)]


@pytest.fixture(autouse=True)
def heard() -> object:
    """Handle SIGINT, which is ignored if the tests run in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(("number", "raised"), SIGNALS)
def test_outside_the_event_loop_a_signal_raises(number: int, raised: type[BaseException]) -> None:
    before = signal.getsignal(number)
    with pytest.raises(raised) as caught, StopSignals():
        signal.raise_signal(number)
    assert type(caught.value) is raised
    assert signal.getsignal(number) == before


@pytest.mark.parametrize(("number", "raised"), SIGNALS)
def test_in_the_event_loop_a_signal_cancels_the_work(number: int, raised: type[BaseException]) -> None:
    ended = []

    async def work() -> None:
        try:
            asyncio.get_running_loop().call_soon(signal.raise_signal, number)
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0)
            ended.append("in order")

    with pytest.raises(raised), StopSignals() as signals:
        signals.run(work)
    assert ended == ["in order"]


def test_a_sleeping_loop_is_woken() -> None:
    async def work() -> None:
        signal.setitimer(signal.ITIMER_REAL, 0.2)  # a signal from outside, while nothing runs
        await asyncio.sleep(60)

    before = signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGTERM))
    try:
        begun = time.monotonic()
        with pytest.raises(Terminated), StopSignals() as signals:
            signals.run(work)
        assert time.monotonic() - begun < 30
    finally:
        signal.signal(signal.SIGALRM, before)


@pytest.mark.filterwarnings("error")
def test_a_signal_before_the_work_starts_cancels_it() -> None:
    begun = []

    async def work() -> None:
        begun.append("work")

    def made() -> Coroutine[Any, Any, None]:
        signal.raise_signal(signal.SIGTERM)
        end = time.monotonic() + 60
        while signals.received is None:  # the main thread handles the signal
            assert time.monotonic() < end
            time.sleep(0.001)
        return work()

    with pytest.raises(Terminated), StopSignals() as signals:
        signals.run(made)
    assert begun == []


def test_a_signal_after_the_work_is_not_lost() -> None:
    async def work() -> None:
        asyncio.get_running_loop().call_soon(signal.raise_signal, signal.SIGTERM)

    with pytest.raises(Terminated), StopSignals() as signals:
        signals.run(work)


def test_an_error_caused_by_the_stop_is_reported_as_the_stop() -> None:
    async def work() -> None:
        try:
            asyncio.get_running_loop().call_soon(signal.raise_signal, signal.SIGTERM)
            await asyncio.sleep(60)
        finally:
            raise RuntimeError("an actor that got the signal too is gone")

    with pytest.raises(Terminated), StopSignals() as signals:
        signals.run(work)


def test_an_error_without_a_signal_is_raised() -> None:
    async def work() -> None:
        raise RuntimeError("a bug")

    with pytest.raises(RuntimeError, match="a bug"), StopSignals() as signals:
        signals.run(work)


def test_an_ignored_signal_stays_ignored() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with StopSignals():
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
        signal.raise_signal(signal.SIGINT)


STUBBORN = """
import asyncio, time
from marl_ray.core.stop_signals import StopSignals

async def work():
    try:
        print("at work", flush=True)
        await asyncio.sleep(60)
    finally:
        print("ending", flush=True)
        time.sleep(60)

with StopSignals() as signals:
    signals.run(work)
"""


def test_a_second_signal_kills() -> None:
    with subprocess.Popen([sys.executable, "-c", STUBBORN], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "at work\n"
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == "ending\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == -signal.SIGTERM


def test_within_a_running_event_loop_a_signal_cancels_the_work_in_its_thread() -> None:
    """Run from an event loop, like a cell of a notebook: the work has a loop in another thread."""
    ended: list[str] = []

    async def work() -> None:
        assert threading.current_thread() is not threading.main_thread()
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.sleep(600)
        finally:
            ended.append("in order")

    async def cell() -> None:
        with pytest.raises(Terminated), StopSignals() as signals:
            signals.run(work)

    before = signal.getsignal(signal.SIGTERM)
    asyncio.run(cell())
    assert (ended, signal.getsignal(signal.SIGTERM)) == (["in order"], before)


def test_in_another_thread_no_handler_is_installed() -> None:
    results: list[object] = []

    async def work() -> str:
        return "done"

    def run() -> None:
        with StopSignals() as signals:
            results.append(signals.run(work))

    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert (results, signal.getsignal(signal.SIGTERM)) == (["done"], before)
