"""Programs on their way through one sandbox."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from marl_ray.sandbox.host.connection import SandboxConnection, SandboxFailure
from marl_ray.sandbox.host.execution_report import ExecutionReport, failed_report
from marl_ray.sandbox.host.isolation_settings import SandboxUnavailable
from marl_ray.sandbox.host.program import Program, count_tests
from marl_ray.sandbox.inside.protocol import frames
from marl_ray.sandbox.inside.protocol.records import Limits

if TYPE_CHECKING:
    from marl_ray.sandbox.host.sandbox import Sandbox

_GRACE_S = 10.0
"""How long past a program's own wall limit a judge may be silent before it is taken for stuck."""
_AHEAD_BYTES = 65536
"""A program up to this size is sent while the one before it still runs; it fits the socket's buffer."""


@dataclass(slots=True)
class _Queued:
    """A program on its way: what was sent for it, and under which number its report will come."""

    program: Program
    limits: Limits
    frame: bytes
    number: int
    sent: bool = False


class ProgramBatch:
    """Programs on their way through one sandbox, the next one sent while one is running."""

    def __init__(self, sandbox: Sandbox, programs: Iterable[Program]) -> None:
        self._sandbox = sandbox
        self._programs = iter(programs)
        self._items: deque[_Queued] = deque()

    def reports(self) -> Iterator[ExecutionReport]:
        while self._items or self._take():
            report = self._report(self._items[0])
            self._items.popleft()
            yield report

    def _take(self) -> bool:
        """Line up one more program; False when there is none."""
        program = next(self._programs, None)
        if program is None:
            return False
        count_tests(program.tests, program.entry_point, program.form)  # a ValueError here, not in the judge
        limits = program.limits or self._sandbox.settings.limits
        number = self._sandbox.next_number()
        request = {**program.to_dict(), "limits": limits.to_dict(), "number": number}
        self._items.append(_Queued(program, limits, frames.pack(request), number))
        return True

    def _report(self, item: _Queued) -> ExecutionReport:
        """Once more in a fresh sandbox if this one dies; two deaths, or a judge that is stuck, are the program's doing.
        (Not if the judge may be busy with a program of a batch that was given up.)
        """
        started = time.monotonic()
        for attempt in (1, 2):
            try:
                return self._attempt(item, ahead=attempt == 1)
            except SandboxFailure as error:
                broken = error
                guilty = error.stuck and item.number == min(self._sandbox.unanswered, default=None)
                for other in self._items:
                    other.sent = False
                try:
                    self._sandbox.restart()
                except SandboxUnavailable as failure:
                    return failed_report(item.program, self._sandbox.level, infra_error=str(failure))
                if guilty:
                    break
        if broken.infra:
            return failed_report(item.program, self._sandbox.level, infra_error=str(broken))
        return failed_report(
            item.program,
            self._sandbox.level,
            status="timeout" if broken.stuck else "crash",
            error_type="Timeout" if broken.stuck else "JudgeDied",
            message="the judge did not survive this program's results",
            wall_s=time.monotonic() - started,
        )

    def _attempt(self, item: _Queued, *, ahead: bool) -> ExecutionReport:
        parts = 2 if item.program.visible else 1
        deadline = time.monotonic() + parts * item.limits.program_wall_s + _GRACE_S
        self._send(item, deadline)
        if ahead and (len(self._items) > 1 or self._take()) and len(self._items[1].frame) <= _AHEAD_BYTES:
            self._send(self._items[1], deadline)
        number = None
        while number != item.number:  # others are left from a batch that was given up
            answer = self._connection().receive(deadline)
            number = answer.pop("number", None)
            self._sandbox.unanswered.discard(number)
        if answer.get("infra_error") is not None:
            raise SandboxFailure(answer["infra_error"], infra=True)
        level = self._sandbox.level
        if level == "none":
            answer["trusted"] = False
            for test in answer["tests"]:
                test["trusted"] = False
        return ExecutionReport.from_dict({**answer, "isolation": level})

    def _send(self, item: _Queued, deadline: float) -> None:
        if not item.sent:
            self._connection().send(item.frame, deadline)
            self._sandbox.unanswered.add(item.number)
            item.sent = True

    def _connection(self) -> SandboxConnection:
        connection = self._sandbox.connection
        if connection is None:
            raise SandboxFailure("the sandbox is not running")
        return connection
