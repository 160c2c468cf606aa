"""The judge: holds the tests, sends requests to the guest, and is the only source of "pass".

The judge runs no code of a program. It evaluates asserts itself, with the program's functions replaced by proxies that
send the arguments to the guest and receive plain data, and it compares printed output itself. Only tests that need the
program's classes as classes run in the guest; their report has `trusted: false`.
"""

from __future__ import annotations

import functools
import socket
import time
from typing import Any

from ..protocol import messages
from ..protocol.messages import Limits, TestResult
from ..suites.visible_tests import split_suite
from .interpreter_state import preserved_state
from .program_compiler import ProgramCompiler
from .scheduling import DeadlineTimer
from .suite_runner import SuiteRequest, SuiteResult, SuiteRunner
from .zygote_client import ZygoteClient, ZygoteError

MEMORY = 1 << 30
"""Bytes of address space that a judge may add to the zygote's, for results and what tests make of them."""

_limits = functools.lru_cache(maxsize=64)(Limits)
"""Cached, since most programs have equal limits, which need not be validated again."""


class Judge:
    """Server of one host: receives requests and sends reports, one at a time.

    With `wait_for_kills` (guests have a scratch folder) no guest starts before the previous one is cleaned up.
    """

    def __init__(self, host: socket.socket, link: socket.socket, wait_for_kills: bool) -> None:
        self._host = host
        self._zygote = ZygoteClient(link, wait_for_kills)
        self._timer = DeadlineTimer()
        self._compiler = ProgramCompiler(self._zygote, self._timer)

    def serve(self) -> None:
        """Answer requests until the host closes the connection. Raises messages.ConnectionClosed."""
        reader = messages.FrameReader(self._host.recv)
        while True:
            message = reader.message()
            self._host.sendall(messages.pack(self._report(message)))

    def _report(self, message: dict[str, Any]) -> dict[str, Any]:
        started = time.monotonic()
        tests, limits = message["tests"], _limits(**message["limits"])
        tests = tests if isinstance(tests, str) else tuple(tests)
        suites = split_suite(tests, message["entry_point"], message["form"], message["prompt"], message["visible"])
        infra_error = None
        total = SuiteResult()
        verdicts: dict[int, TestResult] = {}
        self._timer.cpu.pin()
        try:
            with self._timer.running():
                program = self._compiler.compile(message["program"])
                total.syntax_error = program.error
                for numbers, suite in suites:
                    request = SuiteRequest(message["program"], program.code, suite, limits, message["stdin"])
                    error = total.syntax_error
                    part = self._run(request) if error is None else SuiteResult.not_compiled(error, suite)
                    total.add(part)
                    verdicts |= zip(numbers, part.verdicts, strict=True)
        except ZygoteError as error:
            infra_error = str(error)
        finally:
            self._timer.cpu.finish(total.cpu_s)
        syntax_error = total.syntax_error
        return {
            "number": message["number"],
            "trusted": all(verdict.trusted for verdict in verdicts.values()),
            "syntax_error": None if syntax_error is None else messages.to_dict(syntax_error),
            "tests": [messages.to_dict(verdicts[number]) for number in sorted(verdicts)],
            "stdout": "".join(total.output)[: limits.max_output_bytes],
            "cpu_s": round(total.cpu_s, 4),
            "wall_s": round(time.monotonic() - started, 4),
            "infra_error": infra_error,
        }

    def _run(self, request: SuiteRequest) -> SuiteResult:
        started = time.monotonic()
        with preserved_state(request.suite):
            return SuiteRunner(self._zygote, self._timer, request, started).run()
