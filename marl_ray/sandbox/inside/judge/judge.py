"""The judge: holds the tests, asks the guest, and alone can say "pass".

It runs no code of a program. An assert is evaluated here, with the program's functions replaced by stand-ins
that send the arguments to the guest and take plain data back; printed output is compared here. Only tests
that need the program's classes as classes run in the guest, and then the report says `trusted: false`.
"""

from __future__ import annotations

import functools
import socket
import time
from typing import Any

from ..protocol import frames
from ..protocol.records import Limits, TestResult
from ..suites.suite import Suite
from ..suites.visible_tests import parts
from .deadline_timer import DeadlineTimer
from .interpreter_state import unchanged
from .program_compiler import ProgramCompiler
from .suite_result import SuiteRequest, SuiteResult
from .suite_runner import SuiteRunner
from .zygote_client import ZygoteClient, ZygoteError

MEMORY = 1 << 30
"""Bytes of address space a judge may add to what the zygote has: results and what tests make of them."""


_limits = functools.lru_cache(maxsize=64)(Limits)
"""Most programs have the same, which need not be checked again."""


class Judge:
    """Serves one owner: requests in, reports out, one after the other."""

    def __init__(self, owner: socket.socket, link: socket.socket, tidy: bool) -> None:
        self._owner = owner
        self._zygote = ZygoteClient(link, tidy)
        self._watch = DeadlineTimer()
        self._compiler = ProgramCompiler(self._zygote, self._watch)

    def serve(self) -> None:
        """Until the owner closes the connection: raises frames.ConnectionClosed."""
        reader = frames.FrameReader(self._owner)
        while True:
            message = reader.message()
            frames.send(self._owner, self._report(message))

    def _report(self, message: dict[str, Any]) -> dict[str, Any]:
        started = time.monotonic()
        tests, limits = message["tests"], _limits(**message["limits"])
        tests = tests if isinstance(tests, str) else tuple(tests)
        suites = parts(tests, message["entry_point"], message["form"], message["prompt"], message["visible"])
        infra_error = None
        findings = SuiteResult()
        verdicts: dict[int, TestResult] = {}
        self._watch.cpu.stay()
        try:
            with self._watch.ticking():
                program = self._compiler.compiled(message["program"])
                findings.syntax_error = program.error
                for numbers, suite in suites:
                    request = SuiteRequest(message["program"], program.code, suite, limits, message["stdin"])
                    part = self._run(request) if findings.syntax_error is None else _not_compiled(findings, suite)
                    findings.add(part)
                    verdicts |= zip(numbers, part.verdicts, strict=True)
        except ZygoteError as error:
            infra_error = str(error)
        finally:
            self._watch.cpu.end(findings.cpu_s)
        syntax_error = findings.syntax_error
        return {
            "number": message["number"],
            "trusted": all(verdict.trusted for verdict in verdicts.values()),
            "syntax_error": None if syntax_error is None else syntax_error.to_dict(),
            "tests": [verdicts[number].to_dict() for number in sorted(verdicts)],
            "stdout": "".join(findings.output)[: limits.max_output_bytes],
            "cpu_s": round(findings.cpu_s, 4),
            "wall_s": round(time.monotonic() - started, 4),
            "infra_error": infra_error,
        }

    def _run(self, request: SuiteRequest) -> SuiteResult:
        started = time.monotonic()
        with unchanged(request.suite):
            return SuiteRunner(self._zygote, self._watch, request, started).run()


def _not_compiled(findings: SuiteResult, suite: Suite) -> SuiteResult:
    """The same verdict on every test, without a guest."""
    error = findings.syntax_error
    assert error is not None
    verdicts = [TestResult("error", "SyntaxError", error.message, error.line, case.source) for case in suite.cases]
    return SuiteResult(verdicts, error)
