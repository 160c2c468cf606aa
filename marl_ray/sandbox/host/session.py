"""The isolated processes of one level as seen by the host: start, messages, restarts and programs."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import socket
import subprocess
import tempfile
import time
import weakref
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import IO, Any

from marl_ray.sandbox.host.isolation_levels import LaunchSpec, SandboxUnavailable
from marl_ray.sandbox.host.program import ExecutionReport, Program, failed_report, read_report
from marl_ray.sandbox.inside.protocol import messages
from marl_ray.sandbox.inside.protocol.messages import Limits, TestResult
from marl_ray.sandbox.inside.protocol.reports import MalformedReport

_START_S = 30.0
_END_S = 5.0
"""Seconds that the isolated processes may take to end after they have closed their connection."""
_GRACE_S = 10.0
"""Seconds that a judge may be silent beyond a program's wall limit before it counts as stuck."""
_ANALYSIS_S = 0.01
"""Seconds that the judge may take to analyse one test, several times the measured time."""
_MIN_WALL_S = 0.1
"""Seconds for the remaining tests of a program whose time is used up; all of them are skipped by then."""
_AHEAD_BYTES = 65536
"""A program up to this size is sent while the previous one runs; it fits the socket's buffer."""
_MAX_REPORT = 64 << 20


class SandboxFailure(Exception):
    """The isolated processes died, did not answer in time (`timed_out`), or cannot fork guests (`infrastructure`).

    `stuck` are program and test if the kernel killed the judge, which did not return from C code (`judge.deadlines`).
    """

    def __init__(
        self,
        message: str,
        *,
        timed_out: bool = False,
        infrastructure: bool = False,
        stuck: tuple[int, int] | None = None,
    ) -> None:
        super().__init__(message)
        self.timed_out = timed_out
        self.infrastructure = infrastructure
        self.stuck = stuck


class SandboxConnection:
    """A running zygote and judge, the socket to the judge and the lifeline of the zygote.

    The processes are started by exec with a constant environment and two inherited descriptors, so they hold nothing of
    the host process (API keys in the environment, memory, open files). `stop` and garbage collection end all processes.
    Raises OSError if the zygote cannot be started.
    """

    def __init__(self, spec: LaunchSpec) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - standard error of bubblewrap and the zygote
        self._progress = tempfile.TemporaryFile()  # noqa: SIM115 - see messages.PROGRESS
        self._socket, theirs = socket.socketpair()
        lifeline, self._lifeline = os.pipe()
        self._reader = messages.FrameReader(self._receive, _MAX_REPORT)
        self._deadline = 0.0
        descriptors = (theirs.fileno(), lifeline, self._progress.fileno())
        try:
            self.process = subprocess.Popen(
                [*spec.command, *map(str, descriptors)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._errors,
                env=spec.environment,
                cwd="/",
                close_fds=True,
                pass_fds=descriptors,
                start_new_session=True,
            )
        except OSError:
            self._socket.close()
            os.close(self._lifeline)
            self._errors.close()
            self._progress.close()
            raise
        finally:
            theirs.close()
            os.close(lifeline)
        files = (self._errors, self._progress)
        self.stop = weakref.finalize(self, _stop, self.process, files, self._socket, self._lifeline)

    def send(self, data: bytes, deadline: float) -> None:
        """Send a frame before the deadline (`time.monotonic`). Raises SandboxFailure."""
        try:
            self._socket.settimeout(max(0.01, deadline - time.monotonic()))
            self._socket.sendall(data)
        except TimeoutError:
            raise SandboxFailure("the sandbox does not take programs", timed_out=True) from None
        except OSError:
            raise SandboxFailure(self._last_error()) from None

    def receive(self, deadline: float) -> Any:
        """Return the next message. Raises SandboxFailure at the deadline and when the processes have ended."""
        self._deadline = deadline
        try:
            return self._reader.message()
        except messages.FrameTooLong:
            raise SandboxFailure("the sandbox sent an oversized report") from None
        except messages.ConnectionClosed:
            message = self._last_error()
            raise SandboxFailure(message, stuck=self._stuck_test()) from None
        except (ValueError, RecursionError):
            raise SandboxFailure("the sandbox sent a report that is not JSON") from None

    def _receive(self, size: int) -> bytes:
        """Return some bytes for the frame reader before the deadline; none at the end of the stream."""
        seconds = self._deadline - time.monotonic()
        if seconds <= 0:
            raise SandboxFailure("the sandbox does not answer", timed_out=True)
        self._socket.settimeout(seconds)
        try:
            return self._socket.recv(size)
        except TimeoutError:
            raise SandboxFailure("the sandbox does not answer", timed_out=True) from None
        except OSError:
            return b""

    def _last_error(self) -> str:
        """Return the last line that a zygote wrote to standard error before it ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(_END_S)
        self._errors.seek(0)
        lines = self._errors.read()[-4000:].decode("utf-8", "replace").strip().splitlines()
        last = lines[-1].strip() if lines else ""
        return last or "the sandbox ended without an error message"

    def _stuck_test(self) -> tuple[int, int] | None:
        """Return program and test that held the judge in C code, if it ended for that reason."""
        if self.process.returncode != messages.STUCK_STATUS:
            return None
        number, test = messages.PROGRESS.unpack(os.pread(self._progress.fileno(), messages.PROGRESS.size, 0))
        return (number, test) if test >= 0 else None


def _stop(
    process: subprocess.Popen[bytes], files: Iterable[IO[bytes]], connection: socket.socket, lifeline: int
) -> None:
    """End every process behind a connection: through the lifeline, and by force."""
    connection.close()
    os.close(lifeline)
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        process.kill()
    for file in files:
        file.close()


@dataclass(slots=True)
class _Request:
    """A program with its encoded request and the number under which its report arrives."""

    program: Program
    limits: Limits
    frame: bytes
    number: int
    stuck: list[int]
    """Tests that held a judge in C code, which the next judge skips."""
    sent: bool = False

    def encode(self, wall_s: float) -> None:
        """Encode the request, with this limit on the seconds of all tests."""
        limits = replace(self.limits, program_wall_s=max(_MIN_WALL_S, wall_s))
        limited = {"limits": messages.to_dict(limits), "number": self.number, "stuck": self.stuck}
        self.frame = messages.pack({**self.program.to_dict(), **limited, "count": self.program.number_of_tests})


class SandboxSession:
    """Zygote and judge of one isolation level. Not thread-safe."""

    def __init__(self, spec: LaunchSpec, limits: Limits) -> None:
        self.level = spec.level
        self.limits = limits
        """Limits of programs that bring none of their own."""
        self.facts: dict[str, Any] = {}
        """Facts that the zygote reported at its start: Landlock ABI, thread limit, uid."""
        self.restarts = 0
        self.connection: SandboxConnection | None = None
        self._spec = spec
        self._numbers = itertools.count(1)
        self._unanswered: set[int] = set()
        """Numbers of programs that were sent and have no report yet."""

    def start(self) -> None:
        """Start the processes, ending earlier ones. Raises OSError or SandboxFailure if they do not come up."""
        self.close()
        deadline = time.monotonic() + _START_S
        self.connection = SandboxConnection(self._spec)
        self.connection.send(messages.pack(self._spec.config), deadline)
        answer = self.connection.receive(deadline)
        if "ready" not in answer:
            raise OSError(str(answer.get("failed")))
        self.facts = answer["ready"]
        self._unanswered.clear()

    def restart(self) -> None:
        """Replace processes that failed. Raises SandboxUnavailable if they do not come up again."""
        self.restarts += 1
        try:
            self.start()
        except (OSError, SandboxFailure) as error:
            self.close()
            raise SandboxUnavailable(f"the sandbox cannot be restarted: {error}") from None

    def close(self) -> None:
        """End every process."""
        connection = self.connection
        self.connection = None
        if connection is not None:
            connection.stop()

    def run(self, program: Program) -> ExecutionReport:
        """Run one program."""
        return next(self.run_each([program]))

    def run_each(self, programs: Iterable[Program]) -> Iterator[ExecutionReport]:
        """Yield the report of each program as soon as it is available; one program is sent ahead."""
        requests = map(self._request, programs)
        queue = deque(itertools.islice(requests, 1))
        while queue:
            report = self._run(queue, requests)
            queue.popleft()
            yield report
            if not queue:
                queue.extend(itertools.islice(requests, 1))

    def _request(self, program: Program) -> _Request:
        """Return the request for a program. Raises ValueError for tests that cannot be used."""
        request = _Request(program, program.limits or self.limits, b"", next(self._numbers), [])
        request.encode(request.limits.program_wall_s)
        return request

    def _run(self, queue: deque[_Request], requests: Iterator[_Request]) -> ExecutionReport:
        """Return the report of the first program in the queue, retried once in restarted processes.

        A test that holds the judge in C code is a timeout, and the program is repeated without that test. Two other
        failures, or a judge that is stuck, are attributed to the program, unless the judge may be stuck on a program of
        an abandoned batch.
        """
        started = time.monotonic()
        first = queue[0]
        program = first.program
        number = first.number
        failures = 0
        while failures < 2:
            try:
                return self._attempt(queue, requests, ahead=failures == 0)
            except SandboxFailure as error:
                failure = error
                culprit = error.timed_out and number == min(self._unanswered, default=None)
                if error.stuck is not None and error.stuck[0] == number and error.stuck[1] not in first.stuck:
                    first.stuck.append(error.stuck[1])
                    first.encode(first.limits.program_wall_s - (time.monotonic() - started))
                else:
                    failures += 1
                for request in queue:
                    request.sent = False
                try:
                    self.restart()
                except SandboxUnavailable as unavailable:
                    return failed_report(program, self.level, infra_error=str(unavailable))
                if culprit:
                    break
        if failure.infrastructure:
            return failed_report(program, self.level, infra_error=str(failure))
        message = "the judge did not survive this program's results"
        verdict = TestResult("crash", "JudgeDied", message)
        if failure.timed_out:
            verdict = TestResult("timeout", "Timeout", message)
        return failed_report(program, self.level, verdict, wall_s=time.monotonic() - started)

    def _attempt(self, queue: deque[_Request], requests: Iterator[_Request], *, ahead: bool) -> ExecutionReport:
        """Return the report of the first program in the queue; with `ahead`, send the next program while it runs."""
        first = queue[0]
        parts = 2 if first.program.visible else 1
        analysis_s = _ANALYSIS_S * first.program.number_of_tests
        deadline = time.monotonic() + parts * first.limits.program_wall_s + analysis_s + _GRACE_S
        self._send(first, deadline)
        if ahead:
            queue.extend(itertools.islice(requests, 2 - len(queue)))
            if len(queue) > 1 and len(queue[1].frame) <= _AHEAD_BYTES:
                self._send(queue[1], deadline)
        number = None
        while number != first.number:  # other reports belong to an abandoned batch
            answer = self._running().receive(deadline)
            number = answer.get("number") if type(answer) is dict else None
            if type(number) is not int or number not in self._unanswered:
                raise SandboxFailure("the judge sent a report on no program")
            self._unanswered.discard(number)
        try:
            report = read_report(answer, first.program, first.limits, self.level)
        except MalformedReport as error:
            raise SandboxFailure(f"the judge sent a malformed report: {error}") from None
        if report.infra_error is not None:
            raise SandboxFailure(report.infra_error, infrastructure=True)
        return report

    def _send(self, request: _Request, deadline: float) -> None:
        if not request.sent:
            self._running().send(request.frame, deadline)
            self._unanswered.add(request.number)
            request.sent = True

    def _running(self) -> SandboxConnection:
        if self.connection is None:
            raise SandboxFailure("the sandbox is not running")
        return self.connection
