"""Where judge and guest run: together on one CPU, for as long as they have it to themselves.

They take turns, so a second CPU gains them nothing, and every turn that goes across CPUs costs an interrupt and the
waking of an idle CPU. Left to the scheduler, one program takes 14 to 23 % longer, eight in a row 48 to 54 %, and
eight on each of two sandboxes 26 to 31 % (HumanEval, MBPP and the benchmark's programs; medians of 150 to 450 pairs, in
turns, on two busy cores).

But on a CPU that others use too they must not be held while other CPUs idle. So the scheduler gets them back as soon as
a program takes longer than most (`leave`), and for the whole of the next program if this one had to wait for its CPU.
(Of a guest with threads the first one: the others stay until the guest's end.)
"""

from __future__ import annotations

import os
import time

from ..isolation.process import libc

_MAX_CPUS = 1024
_CROWDED = 1.5
_SLACK_S = 0.001
"""A program has had to wait if it took longer than this many times its CPU time, and so much more."""


class CpuAffinity:
    """Of one judge, and of its guest of the moment."""

    def __init__(self) -> None:
        can_move = hasattr(os, "sched_setaffinity") and hasattr(libc, "sched_getcpu")
        self._anywhere = os.sched_getaffinity(0) if can_move else set()
        self._here: set[int] | None = None
        self._crowded = False

    def stay(self) -> None:
        """A program begins: keep to the CPU of this moment, unless the last one had to wait for it."""
        self._began = time.monotonic(), time.process_time()
        if len(self._anywhere) > 1 and not self._crowded:
            self._here = {libc.sched_getcpu()}
            _move(0, self._here)

    def bring(self, guest: int) -> None:
        """Have a guest run where the judge does."""
        if self._here is not None:
            _move(guest, self._here)

    def leave(self, guest: int = 0) -> None:
        """Let the scheduler place judge and guest again."""
        if self._here is not None:
            self._here = None
            # Of CPUs that it may not use, or that are not there, the kernel takes no notice.
            for process in (0, guest) if guest else (0,):
                if not _move(process, self._anywhere):
                    _move(process, set(range(_MAX_CPUS)))

    def end(self, guests_cpu_s: float) -> None:
        """The program is done, and its guests have used this much CPU time."""
        self.leave()
        wall, cpu = self._began
        used = time.process_time() - cpu + guests_cpu_s
        self._crowded = time.monotonic() - wall > _CROWDED * used + _SLACK_S


def _move(process: int, cpus: set[int]) -> bool:
    """False for a guest that has ended, and where CPUs have been taken away."""
    try:
        os.sched_setaffinity(process, cpus)
    except (OSError, ValueError):
        return False
    return True
