"""One sandbox at work on batches, from several threads: what a Ray actor of `ray_pool` does."""

from __future__ import annotations

import itertools
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from marl_ray.sandbox import ExecutionReport, Program, Sandbox, SandboxSettings

PATIENCE_S = 1.0
SLICE_S = 2.0


@dataclass(frozen=True, slots=True)
class BatchResult:
    """What became of a batch, by position: the reports so far, and what was handed back unstarted.

    `running`: the number under which `finish` gives the rest, while the worker is still busy with one more.
    """

    reports: dict[int, ExecutionReport]
    unstarted: tuple[int, ...] = ()
    running: int | None = None


class _Job:
    """One batch in a worker's thread. `changed` guards all fields; it is notified of the end only, since `run` is to
    wake up for that and when there has been no progress for long.
    """

    def __init__(self, programs: Sequence[Program]) -> None:
        self.programs = programs
        self.reports: dict[int, ExecutionReport] = {}
        self.stop = False
        self.finished = False
        self.error: Exception | None = None
        self.changed = threading.Condition()

    def remaining(self) -> Iterator[Program]:
        """The programs, until told to stop."""
        for program in self.programs:
            if self.stop:
                return
            yield program


class BatchWorker:
    """One sandbox. `run` may be called twice at a time; the second call waits its turn."""

    def __init__(self, settings: SandboxSettings, without: tuple[str, ...] = ()) -> None:
        self._sandbox = Sandbox(settings, without=without)
        self._free = threading.Lock()
        self._progress = time.monotonic()
        self._jobs: dict[int, _Job] = {}
        self._numbers = itertools.count()

    def start(self) -> tuple[str, str]:
        """-> host name, one line on what is active there. SandboxUnavailable."""
        self._sandbox.start()
        return socket.gethostname(), self._sandbox.describe()

    def run(self, programs: Sequence[Program]) -> BatchResult:
        """Run a batch, as far as that goes without being held up by a slow program."""
        while not self._free.acquire(timeout=0.1):
            if time.monotonic() - self._progress > PATIENCE_S:
                return BatchResult({}, tuple(range(len(programs))))
        job = _Job(programs)
        started = self._progress = time.monotonic()
        threading.Thread(target=self._work, args=(job,), daemon=True).start()
        with job.changed:
            while not job.finished:
                now = time.monotonic()
                left = min(self._progress + PATIENCE_S, started + SLICE_S) - now
                if left <= 0:
                    job.stop = True
                    unstarted = tuple(range(len(job.reports) + 1, len(programs)))
                    number = next(self._numbers)
                    self._jobs[number] = job
                    return BatchResult(dict(job.reports), unstarted, running=number)
                job.changed.wait(left)
        return self._result(job)

    def finish(self, number: int) -> BatchResult:
        """The rest of the batch that `run` left running, or its number again when that takes longer than SLICE_S.

        (By then the worker may be busy with the next batch.)
        """
        job = self._jobs[number]
        with job.changed:
            if not job.changed.wait_for(lambda: job.finished, SLICE_S):
                return BatchResult(dict(job.reports), running=number)
        del self._jobs[number]
        return self._result(job)

    def _result(self, job: _Job) -> BatchResult:
        if job.error is not None:
            raise job.error
        return BatchResult(job.reports)

    def _work(self, job: _Job) -> None:
        try:
            for position, report in enumerate(self._sandbox.run_each(job.remaining())):
                with job.changed:
                    job.reports[position] = report
                    self._progress = time.monotonic()
        except Exception as error:  # handed to the caller, which is another thread
            job.error = error
        finally:
            self._free.release()
            with job.changed:
                job.finished = True
                job.changed.notify_all()
