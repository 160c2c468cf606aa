"""The isolated processes of one level, restarted when they fail, and the programs sent to them."""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from marl_ray.sandbox.host.connection import SandboxConnection, SandboxFailure
from marl_ray.sandbox.host.isolation_levels import LaunchSpec, SandboxUnavailable
from marl_ray.sandbox.host.program import ExecutionReport, Program, count_tests, failed_report
from marl_ray.sandbox.inside.protocol import messages
from marl_ray.sandbox.inside.protocol.messages import Limits, TestResult

_START_S = 30.0
_GRACE_S = 10.0
"""Seconds that a judge may be silent beyond a program's wall limit before it counts as stuck."""
_AHEAD_BYTES = 65536
"""A program up to this size is sent while the previous one runs; it fits the socket's buffer."""


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
        self.numbers = itertools.count(1)
        """Numbers of programs, unique within this session."""
        self.unanswered: set[int] = set()
        """Numbers of programs that were sent and have no report yet."""
        self._spec = spec

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
        self.unanswered.clear()

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
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.stop()

    def run(self, program: Program) -> ExecutionReport:
        """Run one program."""
        return next(self.run_each([program]))

    def run_each(self, programs: Iterable[Program]) -> Iterator[ExecutionReport]:
        """Yield the report of each program as soon as it is available; one program is sent ahead."""
        yield from _ProgramQueue(self, programs).reports()


@dataclass(slots=True)
class _QueuedProgram:
    """A program with its encoded request and the number under which its report arrives."""

    program: Program
    limits: Limits
    frame: bytes
    number: int
    sent: bool = False


class _ProgramQueue:
    """Programs on their way through a session; the next program is sent while one is running."""

    def __init__(self, session: SandboxSession, programs: Iterable[Program]) -> None:
        self._session = session
        self._programs = iter(programs)
        self._items: deque[_QueuedProgram] = deque()

    def reports(self) -> Iterator[ExecutionReport]:
        while self._items or self._enqueue():
            report = self._run(self._items[0])
            self._items.popleft()
            yield report

    def _enqueue(self) -> bool:
        """Queue one more program; False if there is none."""
        program = next(self._programs, None)
        if program is None:
            return False
        count_tests(program.tests, program.entry_point, program.form)  # raises ValueError here, not in the judge
        limits = program.limits or self._session.limits
        number = next(self._session.numbers)
        request = {**program.to_dict(), "limits": messages.to_dict(limits), "number": number}
        self._items.append(_QueuedProgram(program, limits, messages.pack(request), number))
        return True

    def _run(self, item: _QueuedProgram) -> ExecutionReport:
        """Return the report of a program, retried once in restarted processes.

        Two failures, or a judge that is stuck, are attributed to the program, unless the judge may be stuck on a program
        of an abandoned batch.
        """
        started = time.monotonic()
        for attempt in (1, 2):
            try:
                return self._attempt(item, ahead=attempt == 1)
            except SandboxFailure as error:
                failure = error
                culprit = error.timed_out and item.number == min(self._session.unanswered, default=None)
                for other in self._items:
                    other.sent = False
                try:
                    self._session.restart()
                except SandboxUnavailable as unavailable:
                    return failed_report(item.program, self._session.level, infra_error=str(unavailable))
                if culprit:
                    break
        if failure.infrastructure:
            return failed_report(item.program, self._session.level, infra_error=str(failure))
        message = "the judge did not survive this program's results"
        timed_out = TestResult("timeout", "Timeout", message)
        verdict = timed_out if failure.timed_out else TestResult("crash", "JudgeDied", message)
        return failed_report(item.program, self._session.level, verdict, wall_s=time.monotonic() - started)

    def _attempt(self, item: _QueuedProgram, *, ahead: bool) -> ExecutionReport:
        parts = 2 if item.program.visible else 1
        deadline = time.monotonic() + parts * item.limits.program_wall_s + _GRACE_S
        self._send(item, deadline)
        if ahead and (len(self._items) > 1 or self._enqueue()) and len(self._items[1].frame) <= _AHEAD_BYTES:
            self._send(self._items[1], deadline)
        number = None
        while number != item.number:  # other reports belong to an abandoned batch
            answer = self._connection().receive(deadline)
            number = answer.pop("number", None)
            self._session.unanswered.discard(number)
        if answer.get("infra_error") is not None:
            raise SandboxFailure(answer["infra_error"], infrastructure=True)
        if self._session.level == "none":
            answer["trusted"] = False
            for test in answer["tests"]:
                test["trusted"] = False
        return ExecutionReport.from_dict({**answer, "isolation": self._session.level})

    def _send(self, item: _QueuedProgram, deadline: float) -> None:
        if not item.sent:
            self._connection().send(item.frame, deadline)
            self._session.unanswered.add(item.number)
            item.sent = True

    def _connection(self) -> SandboxConnection:
        if self._session.connection is None:
            raise SandboxFailure("the sandbox is not running")
        return self._session.connection
