"""The judge: holds the tests, sends requests to the guest, and decides every verdict.

It evaluates asserts itself, with the program's functions replaced by proxies that send the arguments to the guest and
receive plain data, and it compares printed output itself. Only tests that need the program's classes as classes run in
the guest; a pass of such a test rests on the guest's answer and has `trusted: false`.
"""

from __future__ import annotations

import decimal
import functools
import os
import socket
import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from ..isolation import seccomp
from ..protocol import messages
from ..protocol.messages import GuestLimits, Limits, SyntaxDiagnosis, TestResult
from ..suites.suite_parser import SuitePart, split_suite
from .deadlines import DeadlineTimer
from .evaluation_context import GuestFault
from .guest_session import GuestSession
from .own_process import OwnProcesses
from .remote_errors import clean_text, parse_syntax_error
from .suite_request import SuiteRequest, SuiteResult
from .suite_runner import SuiteRunner
from .zygote_client import ZygoteClient, ZygoteError

MEMORY = 1 << 30
"""Bytes of address space that a judge may add to the zygote's, for results and what tests make of them."""
_limits = functools.lru_cache(maxsize=64)(Limits)  # most programs have equal limits, validated once


class Judge:
    """Server of one host: receives requests and sends reports, one at a time.

    Tests that may leave something behind run in a process of their own (see `own_process`). `progress` is the
    descriptor of a file that tells the host which test is under evaluation.
    """

    def __init__(
        self, host: socket.socket, zygote: ZygoteClient, progress: int, no_fork: seccomp.Filter | None = None
    ) -> None:
        self._host = host
        self._progress = progress
        self._zygote = zygote
        self._timer = DeadlineTimer()
        self._compiler = ProgramCompiler(zygote, self._timer)
        self._own_processes = OwnProcesses(zygote, self._timer, (progress,), no_fork)

    def serve(self) -> None:
        """Answer requests until the host closes the connection. Raises messages.ConnectionClosed."""
        reader = messages.FrameReader(self._host.recv)
        while True:
            message = reader.message()
            self._host.sendall(messages.pack(self._report(message)))

    def _report(self, message: dict[str, Any]) -> dict[str, Any]:
        started = time.monotonic()
        tests = message["tests"]
        if not isinstance(tests, str):
            tests = tuple(tests)  # hashable, for the parser's cache
        limits = _limits(**message["limits"])
        infra_error = None
        total = SuiteResult()
        verdicts: dict[int, TestResult] = {}
        parts: Iterable[SuitePart] = ()
        try:
            parts = split_suite(tests, message["entry_point"], message["form"], message["prompt"], message["visible"])
        except ValueError as error:  # the host counts the tests without this analysis of them
            unusable = TestResult("error", "ValueError", clean_text(f"the tests cannot be used: {error}"))
            verdicts = dict.fromkeys(range(message["count"]), unusable)
        self._timer.cpu.pin()
        try:
            with self._timer.running():
                code, total.syntax_error = self._compiler.compile(message["program"])
                for part in parts:
                    begin = functools.partial(self._begin, message)
                    request = SuiteRequest(message["program"], code, part, limits, message["stdin"], verdicts, begin)
                    result = self._result(request, total.syntax_error)
                    total.add(result)
                    verdicts = dict(zip(part.numbers, _final_verdicts(part, result), strict=True)) | verdicts
        except ZygoteError as error:
            infra_error = str(error)
        finally:
            self._timer.cpu.finish(total.cpu_s + total.judge_cpu_s)
            os.pwrite(self._progress, messages.PROGRESS.pack(message["number"], -1), 0)
        syntax_error = total.syntax_error
        return {
            "number": message["number"],
            "syntax_error": None if syntax_error is None else messages.to_dict(syntax_error),
            "tests": [messages.to_dict(verdicts[number]) for number in sorted(verdicts)],
            "stdout": "".join(total.output)[: limits.max_output_bytes],
            "cpu_s": round(total.cpu_s, 4),
            "wall_s": round(time.monotonic() - started, 4),
            "infra_error": infra_error,
        }

    def _result(self, request: SuiteRequest, syntax_error: SyntaxDiagnosis | None) -> SuiteResult:
        """Return the result of one part of the tests."""
        suite = request.part.suite
        if syntax_error is not None:
            verdict = TestResult("error", "SyntaxError", syntax_error.message, syntax_error.line)
            return SuiteResult([verdict] * len(suite.cases), syntax_error)
        if suite.leaves_nothing:
            decimal.setcontext(decimal.Context())  # arithmetic sets flags in the context
            return SuiteRunner(self._zygote, self._timer, request).run()
        if suite.form == "unittest":  # imported once, here, and not in the zygote, where it makes every fork dearer
            from . import unit_runner  # noqa: F401

            if "mock" in suite.source:
                import unittest.mock  # noqa: F401
        return self._own_processes.run(request)

    def _begin(self, message: dict[str, Any], case: int) -> bool:
        """Record the test that begins; return whether it may be evaluated."""
        os.pwrite(self._progress, messages.PROGRESS.pack(message["number"], case), 0)
        return case not in message["stuck"]


class ProgramCompiler:
    """Compiler of one judge, in a guest process that runs no program. The timer must be running.

    A program is compiled once, and its guests receive the code object. Compilation can cost much time and memory
    (nested `finally` blocks, alternatives in patterns, constant folding), so the compiling process has the limits of a
    guest and is discarded when it reaches them. Its answers are passed on to guests or report a syntax error; no answer
    can produce a pass.
    """

    _CPU_S = 0.5
    _WALL_S = 2.0
    _LIMITS = GuestLimits(memory_mb=128, cpu_s=1 << 30, output=0, reply=4 << 20)
    _MAX_CHARACTERS = 1 << 16

    def __init__(self, zygote: ZygoteClient, timer: DeadlineTimer) -> None:
        self._zygote = zygote
        self._timer = timer
        self._session: GuestSession | None = None

    def compile(self, source: str) -> tuple[str | None, SyntaxDiagnosis | None]:
        """Return the program's code (marshalled, in hexadecimal) or its syntax error.

        Returns neither if only the program's own guest can tell, under its limits: errors that depend on the process
        (the permitted nesting depth), and programs that cost too much here. Raises ZygoteError if no process starts.
        """
        if len(source) > self._MAX_CHARACTERS:
            return None, None
        session = self._session
        if session is None:
            session = self._session = GuestSession(self._zygote.fork(self._LIMITS), self._LIMITS.reply)
        answer = ["ok", None]
        try:
            with self._timer.limit(session, self._CPU_S, self._WALL_S):
                answer = session.request("compile", source)
        except GuestFault:
            pass
        if session.fault is not None:
            self._session = None
            self._zygote.kill(session.guest)
            return None, None
        if answer[0] == "syntax":
            return None, parse_syntax_error(answer)
        if answer[0] == "ok" and type(answer[1]) is str:
            return answer[1], None
        return None, None


def _final_verdicts(part: SuitePart, result: SuiteResult) -> list[TestResult]:
    """Return the verdicts with the texts of their tests; a test that ran in the guest is never trusted."""
    verdicts = []
    for case, verdict in zip(part.suite.cases, result.verdicts, strict=True):
        trusted = verdict.trusted and not case.in_guest
        verdicts.append(replace(verdict, source=case.source, trusted=trusted))
    return verdicts
