"""Deadlines of a test, and CPU placement of judge and guest.

One periodic timer checks the wall clock and the guest's CPU clock. It interrupts the judge wherever it is, waiting for
the guest or computing on the guest's data, so no call needs a timeout of its own.

Python runs the timer's handler between two bytecode instructions, so the handler cannot interrupt C code: `Counter` of
numbers with equal hashes, `sum` of lists. A second timer counts the judge's CPU time since the last tick. At its limit
the kernel kills the judge, and the host starts another judge, which skips that test.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from ..isolation.process import libc
from .guest_session import GuestSession

TICK_S = 0.02
_SLACK_CPU_S = 0.5
"""CPU seconds that the judge may use in C code beyond the limit of a test."""
_MAX_CPUS = 1024
_CROWDED = 1.5
_SLACK_S = 0.001
"""A program had to wait for its CPU if it took longer than CPU time * _CROWDED + _SLACK_S."""


class DeadlineTimer:
    """Deadlines around all code that waits for a guest or handles its data."""

    def __init__(self) -> None:
        self.cpu = CpuAffinity()
        self._session: GuestSession | None = None
        self._wall_end = 0.0
        self._cpu_end = 0.0
        self._quiet_until = 0.0
        self._own_cpu_s = 0.0
        signal.signal(signal.SIGALRM, self._tick)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run the timer in the body. `limit` has no effect without it."""
        self._own_cpu_s = 0.0  # in a process that the judge has forked, no timer is running yet
        signal.setitimer(signal.ITIMER_REAL, TICK_S, TICK_S)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            signal.setitimer(signal.ITIMER_PROF, 0.0)
            self._session = None
            self._own_cpu_s = 0.0

    @contextmanager
    def limit(self, session: GuestSession, cpu_s: float, wall_s: float) -> Iterator[None]:
        """Raise GuestFault in the body after `cpu_s` more CPU seconds of the guest or `wall_s` seconds.

        The kernel kills this process after `cpu_s` CPU seconds of its own in C code, in the body or after the body.
        """
        self._wall_end = time.monotonic() + wall_s
        self._cpu_end = session.cpu_s() + cpu_s
        self._quiet_until = 0.0
        self._session = session
        own_cpu_s = max(0.0, min(cpu_s, wall_s)) + _SLACK_CPU_S  # `wall_s` is negative if the time was over before
        if own_cpu_s != self._own_cpu_s:  # otherwise the last tick has started the timer, with this limit
            self._own_cpu_s = own_cpu_s
            signal.setitimer(signal.ITIMER_PROF, own_cpu_s)
        try:
            yield
        finally:
            self._session = None

    def _tick(self, number: int, frame: FrameType | None) -> None:
        session = self._session
        signal.setitimer(signal.ITIMER_PROF, self._own_cpu_s)
        if session is None:
            self.cpu.release()
            return
        self.cpu.release(session.guest.pid)
        now = time.monotonic()
        if now < self._quiet_until:
            return
        if session.cpu_s() >= self._cpu_end:
            clock = "CPU"
        elif now >= self._wall_end:
            clock = "wall"
        else:
            return
        # Raised again a second later, in case the interrupted code swallows it.
        self._quiet_until = now + 1.0
        raise session.fail("timeout", "Timeout", f"{clock} time limit of the test")


class CpuAffinity:
    """Placement of a judge and its current guest on one CPU, while they have that CPU to themselves.

    Judge and guest alternate, so a second CPU gains nothing, and every switch between CPUs costs an interrupt and the
    wake-up of an idle CPU: left to the scheduler, a program takes 14 to 54 % longer (medians on two busy cores).

    They must not stay on a contended CPU while other CPUs idle. So `release` returns them to the scheduler as soon as a
    program takes longer than most, and the next program starts unpinned if this one had to wait for its CPU.
    (`release` moves only the first thread of a guest; its other threads stay pinned until the guest exits.)
    """

    def __init__(self) -> None:
        can_pin = hasattr(os, "sched_setaffinity") and hasattr(libc, "sched_getcpu")
        self._allowed = os.sched_getaffinity(0) if can_pin else set()
        self._pinned: set[int] | None = None
        self._crowded = False

    def pin(self) -> None:
        """Start a program: pin the judge to its current CPU, unless the last program had to wait."""
        self._start = time.monotonic(), time.process_time()
        if len(self._allowed) > 1 and not self._crowded:
            self._pinned = {libc.sched_getcpu()}
            _set_affinity(0, self._pinned)

    def pin_guest(self, guest: int) -> None:
        """Move a guest process to the judge's CPU."""
        if self._pinned is not None:
            _set_affinity(guest, self._pinned)

    def release(self, guest: int = 0) -> None:
        """Return judge and guest to the scheduler."""
        if self._pinned is not None:
            self._pinned = None
            # The kernel ignores CPUs that do not exist or are not allowed.
            for process in {0, guest}:
                if not _set_affinity(process, self._allowed):
                    _set_affinity(process, set(range(_MAX_CPUS)))

    def finish(self, guests_cpu_s: float) -> None:
        """End a program whose guests used this much CPU time."""
        self.release()
        wall, cpu = self._start
        used = time.process_time() - cpu + guests_cpu_s
        self._crowded = time.monotonic() - wall > _CROWDED * used + _SLACK_S


def _set_affinity(process: int, cpus: set[int]) -> bool:
    try:
        os.sched_setaffinity(process, cpus)
        return True
    except (OSError, ValueError):  # the guest has exited, or CPUs were taken away
        return False
