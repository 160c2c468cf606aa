"""The judge: holds the tests, sends requests to the guest, and decides every verdict.

It evaluates asserts itself, with the program's functions replaced by proxies that send the arguments to the guest and
receive plain data, and it compares printed output itself. Only tests that need the program's classes as classes run in
the guest; a pass of such a test rests on the guest's answer and has `trusted: false`.
"""

from __future__ import annotations

import decimal
import functools
import gc
import hashlib
import locale
import os
import random
import signal
import socket
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from ..protocol import messages
from ..protocol.messages import GuestLimits, Limits, SyntaxDiagnosis, TestResult
from ..suites.suite import Suite
from ..suites.suite_parser import split_suite
from .deadlines import TICK_S, DeadlineTimer
from .evaluation_context import GuestFault
from .guest_session import GuestSession
from .remote_errors import parse_syntax_error
from .suite_runner import SuiteRequest, SuiteResult, SuiteRunner
from .zygote_client import ZygoteClient, ZygoteError

MEMORY = 1 << 30
"""Bytes of address space that a judge may add to the zygote's, for results and what tests make of them."""
_limits = functools.lru_cache(maxsize=64)(Limits)  # most programs have equal limits, validated once


class Judge:
    """Server of one host: receives requests and sends reports, one at a time.

    With `wait_for_kills` (guests have a scratch folder) no guest starts before the previous one is cleaned up.
    `progress` is the descriptor of a file that tells the host which test is under evaluation.
    """

    def __init__(self, host: socket.socket, link: socket.socket, progress: int, wait_for_kills: bool) -> None:
        self._host = host
        self._progress = progress
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
        parts = split_suite(tests, message["entry_point"], message["form"], message["prompt"], message["visible"])
        infra_error = None
        total = SuiteResult()
        verdicts: dict[int, TestResult] = {}
        if parts[0].suite.form == "unittest":  # before the tests, since their changes of modules are undone
            import unittest.mock  # noqa: F401 - not in the zygote, where every module makes each fork dearer
        self._timer.cpu.pin()
        try:
            with self._timer.running():
                code, total.syntax_error = self._compiler.compile(message["program"])
                for part in parts:
                    suite, error = part.suite, total.syntax_error
                    if error is None:
                        begin = functools.partial(self._begin, message)
                        request = SuiteRequest(
                            message["program"], code, part, limits, message["stdin"], verdicts, begin
                        )
                        with preserved_state(suite):
                            result = SuiteRunner(self._zygote, self._timer, request).run()
                    else:
                        verdict = TestResult("error", "SyntaxError", error.message, error.line)
                        result = SuiteResult([replace(verdict, source=case.source) for case in suite.cases], error)
                    total.add(result)
                    verdicts = dict(zip(part.numbers, result.verdicts, strict=True)) | verdicts
        except ZygoteError as error:
            infra_error = str(error)
        finally:
            self._timer.cpu.finish(total.cpu_s)
            os.pwrite(self._progress, messages.PROGRESS.pack(message["number"], -1), 0)
        return {
            "number": message["number"],
            "trusted": all(verdict.trusted for verdict in verdicts.values()),
            "syntax_error": None if total.syntax_error is None else messages.to_dict(total.syntax_error),
            "tests": [messages.to_dict(verdicts[number]) for number in sorted(verdicts)],
            "stdout": "".join(total.output)[: limits.max_output_bytes],
            "cpu_s": round(total.cpu_s, 4),
            "wall_s": round(time.monotonic() - started, 4),
            "infra_error": infra_error,
        }

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

    _CPU_S, _WALL_S = 0.5, 2.0
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
        return answer[1] if answer[0] == "ok" and type(answer[1]) is str else None, None


@contextmanager
def preserved_state(suite: Suite) -> Iterator[None]:
    """Restore the interpreter state after the body, which runs the tests of one problem.

    The random seed depends on the tests alone: a program would know the numbers of a seed that it shares. Modules are
    restored only if the tests' text says that they may be changed, since that takes 1 ms.
    """
    depth, digits, hook = sys.getrecursionlimit(), sys.get_int_max_str_digits(), sys.excepthook
    filters, alarm = warnings.filters[:], signal.getsignal(signal.SIGALRM)
    collecting = gc.isenabled()
    context = decimal.getcontext().copy()
    category = locale.setlocale(locale.LC_ALL)
    folder, modules = (os.getcwd(), _copy_modules()) if suite.patches else ("", [])
    if suite.uses_random:
        random.seed(hashlib.sha256("\0".join(case.source for case in suite.cases).encode("utf-8", "replace")).digest())
    try:
        yield
    finally:
        for names, before in modules:
            if isinstance(before, list):
                names[:] = before
            elif names is os.environ or dict(names) != before:
                names.update(before)  # never empty in between: the timer's signal handler uses these names
                for name in names.keys() - before.keys():
                    del names[name]
        if folder:
            os.chdir(folder)
        if signal.getsignal(signal.SIGALRM) is not alarm:  # the judge's own timer
            signal.signal(signal.SIGALRM, alarm)
            signal.setitimer(signal.ITIMER_REAL, TICK_S, TICK_S)
        if collecting:
            gc.enable()
        sys.setrecursionlimit(depth)
        sys.set_int_max_str_digits(digits)
        sys.excepthook = hook
        warnings.filters[:] = filters  # type: ignore[index]
        warnings._filters_mutated()  # type: ignore[attr-defined]
        decimal.setcontext(context)
        if locale.setlocale(locale.LC_ALL) != category:
            locale.setlocale(locale.LC_ALL, category)


def _copy_modules() -> list[tuple[Any, Any]]:
    """Return copies of what tests can patch: names in modules, the environment, two lists. (No class attributes.)"""
    copies: list[tuple[Any, Any]] = [(sys.modules, dict(sys.modules)), (os.environ, dict(os.environ))]
    for module in list(sys.modules.values()):
        names = getattr(module, "__dict__", None)
        if type(names) is dict:
            copies.append((names, dict(names)))
    return copies + [(values, list(values)) for values in (sys.path, sys.argv)]
