"""Deadlines of one test: a periodic timer looks at the wall clock and at the guest's CPU clock.

One timer instead of a timeout on every call: it interrupts the judge wherever it is, waiting for the guest or
computing on what the guest has sent.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from .cpu_affinity import CpuAffinity
from .guest_session import GuestSession

TICK_S = 0.02


class DeadlineTimer:
    """Armed around everything that waits for a guest or handles its data."""

    def __init__(self) -> None:
        self.cpu = CpuAffinity()
        self._session: GuestSession | None = None
        self._wall_end = 0.0
        self._cpu_end = 0.0
        self._quiet_until = 0.0
        signal.signal(signal.SIGALRM, self._tick)

    @contextmanager
    def ticking(self) -> Iterator[None]:
        """Let the timer run; without it `armed` has no effect."""
        signal.setitimer(signal.ITIMER_REAL, TICK_S, TICK_S)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            self._session = None

    @contextmanager
    def armed(self, session: GuestSession, cpu_s: float, wall_s: float) -> Iterator[None]:
        """Raise a GuestFault in the body once the guest has used `cpu_s` more, or `wall_s` have passed."""
        self._wall_end = time.monotonic() + wall_s
        self._cpu_end = session.cpu_s() + cpu_s
        self._quiet_until = 0.0
        self._session = session
        try:
            yield
        finally:
            self._session = None

    def _tick(self, number: int, frame: FrameType | None) -> None:
        session = self._session
        self.cpu.leave(session.guest.pid if session is not None else 0)
        if session is None:
            return
        now = time.monotonic()
        if now < self._quiet_until:
            return
        if session.cpu_s() >= self._cpu_end:
            fault = session.fail("timeout", "Timeout", "CPU time limit of the test")
        elif now >= self._wall_end:
            fault = session.fail("timeout", "Timeout", "wall time limit of the test")
        else:
            return
        # Raised again a second later, should the code that it interrupts have swallowed it.
        self._quiet_until = now + 1.0
        raise fault
