"""One program against one suite of tests, in the judge: verdict by verdict."""

from __future__ import annotations

import contextlib
import importlib
import os
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ..isolation.process import anonymous_file
from ..protocol.encoding import ProtocolError
from ..protocol.records import TestResult
from ..protocol.shared_objects import restore
from ..suites.suite import Case
from .assert_evaluator import AssertEvaluator
from .deadline_timer import DeadlineTimer
from .evaluation_context import CONTEXT, GuestFault
from .guest_session import GuestSession
from .output_comparison import first_difference, input_file, is_full, lines, read_output, same
from .suite_result import SuiteRequest, SuiteResult, local, reported, syntax_diagnosis, unit_verdict
from .zygote_client import ZygoteClient, ZygoteError, explained

_PASS = TestResult("pass")
_UNFINISHED = TestResult("error", "Unfinished", "the test was not evaluated to its end")


class _Names(dict[str, Any]):
    """The tests' globals. What they do not define is looked up when it is read, in functions too."""

    def __init__(self, find: Callable[[str], Any]) -> None:
        super().__init__()
        self._find = find

    def __missing__(self, name: str) -> Any:
        return self._find(name)


class SuiteRunner:
    """One program against one suite."""

    def __init__(self, zygote: ZygoteClient, watch: DeadlineTimer, request: SuiteRequest, started: float) -> None:
        self._zygote = zygote
        self._watch = watch
        self._request = request
        self._suite = request.suite
        self._limits = request.limits
        self._started = started
        self._findings = SuiteResult()
        self._resources = request.resources()
        self._session: GuestSession | None = None
        self._verdicts: dict[int, TestResult] = {}
        self._stuck: TestResult | None = None
        self._last: TestResult | None = None
        self._recorder = AssertEvaluator()
        self._named: dict[str, Any] = {}
        self._doubtful: frozenset[str] = frozenset()
        self._changed: list[tuple[Any, Any]] = []
        self._names = _Names(self._find)

    def run(self) -> SuiteResult:
        """All verdicts. Raises ZygoteError without a guest."""
        numbered = list(enumerate(self._suite.cases))
        try:
            if self._suite.form == "stdio":
                self._each(numbered, self._stdio_case)
            else:
                outside = [(number, case) for number, case in numbered if not case.in_guest]
                if outside:
                    self._names |= {"__name__": "tests", **self._recorder.names()}
                    self._run_helpers()
                    self._each(outside, self._judge_case)
                    self._end_session()
                # In a process of their own: those know the tests that run in them.
                inside = [(number, case) for number, case in numbered if case.in_guest]
                self._each(inside, self._guest_case)
        finally:
            self._end_session()
            self._restore()
        for number, case in numbered:
            self._findings.verdicts.append(self._verdicts[number].for_test(case.source, trustworthy=not case.in_guest))
        return self._findings

    def _each(self, cases: list[tuple[int, Case]], judge_case: Callable[[Case], TestResult]) -> None:
        """A verdict for every case; what follows once the budget is used up is skipped."""
        findings, limits, verdicts = self._findings, self._limits, self._verdicts
        for number, case in cases:
            if self._stuck is not None:
                verdicts[number] = self._stuck
                continue
            if (
                findings.timeouts >= limits.max_timeouts
                or findings.crashes >= limits.max_crashes
                or self._wall_left() <= 0
            ):
                verdicts[number] = TestResult("skipped", "Skipped", "the program's budget was used up")
                continue
            verdict = verdicts[number] = self._last = judge_case(case)
            findings.timeouts += verdict.status == "timeout"
            findings.crashes += verdict.status == "crash"

    def _wall_left(self) -> float:
        return self._limits.program_wall_s - (time.monotonic() - self._started)

    def _restore(self) -> None:
        """Undo what the program has done to objects of the tests: some may be the standard library's."""
        for value, before in reversed(self._changed):
            with contextlib.suppress(Exception):  # a view holds it, a key cannot be hashed: the tests have made it
                restore(value, before)

    # --- the guest ---

    def _new_session(self, stdin: str | None, *, apart: bool = False) -> GuestSession:
        """A session with a guest that has not loaded the program yet. `apart`: standard error is not kept."""
        limits = self._resources
        if stdin is None:
            guest = self._zygote.fork(limits)
            self._zygote.prepare_spare(limits)
        else:
            streams = [input_file(stdin), *([anonymous_file("errors")] if apart else [])]
            try:
                guest = self._zygote.fork(limits, *streams)
            finally:
                for stream in streams:
                    os.close(stream)
        self._watch.cpu.bring(guest.pid)
        self._session = GuestSession(guest, limits.reply)
        return self._session

    def _loaded_session(self) -> GuestSession | None:
        """The session the tests talk to, started anew after a fault; None once the program cannot be loaded."""
        if self._session is not None and self._session.fault is None:
            return self._session
        self._end_session()
        session = self._new_session(self._request.stdin)
        names = sorted(self._suite.remote)
        answer: list[Any] = []

        def load() -> None:
            answer.extend(session.request("load", *self._request.program(), names))
            if answer[0] == "ok" and type(answer[1]) is dict:
                self._take_names(session, answer[1])

        fault = self._guarded(load)
        if fault is not None:
            self._stuck = fault
        elif answer[0] == "syntax":
            self._stuck = self._syntax_error(answer)
        elif answer[0] == "raise":
            self._stuck = TestResult("error", *reported(answer))
        elif type(answer[1]) is dict:
            return session
        if self._stuck is None:
            self._stuck = TestResult("crash", "ProtocolError", "malformed answer to load")
        return None

    def _take_names(self, session: GuestSession, callables: dict[str, Any]) -> None:
        """Stand-ins for what of the program can be called; its other names are asked for when they are read."""
        try:
            self._named = {
                name: session.handle([name, *callables[name][1:]], self)
                for name in self._suite.remote
                if type(callables.get(name)) is list
            }
        except ProtocolError as error:
            raise session.fail("crash", "ProtocolError", str(error)) from None

    def _find(self, name: str) -> Any:
        """What a name means that the tests use and do not define. Raises KeyError: a builtin, if anything."""
        standard = self._suite.standard.get(name)
        if standard is not None:
            module, _, member = standard.partition(":")
            found = importlib.import_module(module)
            return getattr(found, member) if member else found
        if name not in self._suite.remote:
            raise KeyError(name)
        return self._named[name] if name in self._named else self.open_session().value("name", name)

    def open_session(self) -> GuestSession:
        """The session of the moment: functions of the program are there again after a fault, by their names."""
        assert self._session is not None
        return self._session

    def _syntax_error(self, answer: list[Any]) -> TestResult:
        error = self._findings.syntax_error = syntax_diagnosis(answer)
        return TestResult("error", "SyntaxError", error.message, error.line)

    def _end_session(self) -> None:
        """Take over what the guest has printed and used, and have it buried."""
        session, self._session = self._session, None
        if session is None:
            return
        session.closed = True
        self._changed += session.changed()
        self._findings.cpu_s += session.cpu_s()
        limit = self._limits.max_output_bytes - sum(map(len, self._findings.output))
        if self._suite.form != "stdio" and limit > 0:
            self._findings.output.append(read_output(session.guest.output, limit))
        self._watch.cpu.leave(session.guest.pid)  # its end is work, which another CPU may have time for
        if session.fault is None or session.fault.status == "timeout":
            self._zygote.bury(session.guest)
            return
        ending = explained(self._zygote.bury_and_wait(session.guest))
        for verdict in filter(None, (self._last, self._stuck)):
            if verdict.error_type == "ProcessExit" and not verdict.message:
                self._replace(verdict, replace(verdict, message=ending))

    def _replace(self, old: TestResult, new: TestResult) -> None:
        """Every test that has one verdict gets another."""
        for number, verdict in self._verdicts.items():
            if verdict is old:
                self._verdicts[number] = new
        self._stuck = new if self._stuck is old else self._stuck

    def _guarded(self, action: Callable[[], object]) -> TestResult | None:
        """Do something with the guest under one test's limits; gives a verdict if the guest did not survive it."""
        session = self._session
        assert session is not None
        wall = min(self._limits.test_wall_s, self._wall_left())
        try:
            with self._watch.armed(session, self._limits.test_cpu_s, wall):
                action()
        except GuestFault:
            pass
        fault = session.fault
        return None if fault is None else TestResult(fault.status, fault.error_type, fault.message)

    # --- asserts ---

    def _run_helpers(self) -> None:
        """Define what the prompt defines."""
        for code in self._suite.helpers:
            try:
                exec(code, self._names)
            except Exception:  # an import that is not there, say; tests that need it will say so
                continue

    def _judge_case(self, case: Case) -> TestResult:
        """An error, until the test has been evaluated to its end against a guest that is still the current one."""
        session = self._loaded_session()
        if session is None:
            assert self._stuck is not None
            return self._stuck
        self._recorder.clear()
        CONTEXT.clear(case.compares)
        verdict = _UNFINISHED

        def evaluate() -> None:
            nonlocal verdict
            assert case.code is not None
            try:
                exec(case.code, self._names)
                verdict = _PASS
            except (GuestFault, ZygoteError):
                raise
            except AssertionError as error:
                remote = getattr(error, "remote", None)
                if remote is None:
                    verdict = TestResult("fail", "AssertionError", self._recorder.explain(error))
                else:
                    verdict = TestResult("error", *remote)
            except BaseException as error:
                remote = getattr(error, "remote", None)
                verdict = TestResult("error", *(remote or local(error)))

        fault = self._guarded(evaluate)
        untrusted = CONTEXT.untrusted or bool(case.variables.reads & self._doubtful)
        if untrusted:
            self._doubtful |= case.variables.touches
        if fault is not None:
            return fault
        if self._session is not session or session.closed:
            return TestResult("error", "Unfinished", "the program's process was replaced during the test")
        if CONTEXT.refusal is not None and (verdict.status != "error" or verdict.error_type == "Refused"):
            return TestResult("error", "TypeError", CONTEXT.refusal)
        return replace(verdict, trusted=False) if untrusted else verdict

    # --- tests that run in the guest ---

    def _guest_case(self, case: Case) -> TestResult:
        fresh = self._session is None or self._session.fault is not None
        session = self._loaded_session()
        if session is None:
            assert self._stuck is not None
            return self._stuck
        answer: list[Any] = []

        def ask() -> None:
            if fresh:
                unittest = self._suite.form == "unittest"
                for source in [self._suite.source] if unittest else self._suite.preamble:
                    answer[:] = session.request("define", source, unittest)
                    if answer[0] != "ok" and unittest:
                        return
            if case.unit is None:
                answer[:] = session.request("test", case.plain)
            else:
                answer[:] = session.request("unit", *case.unit)

        return self._guarded(ask) or self._told(case, answer)

    def _told(self, case: Case, answer: list[Any]) -> TestResult:
        """What the guest says about a test."""
        if answer[0] not in ("ok", "raise"):
            return TestResult("crash", "ProtocolError", "answer of the wrong kind")
        if answer[0] == "raise":
            error_type, message, line = reported(answer)
            return TestResult("fail" if error_type == "AssertionError" else "error", error_type, message, line)
        if case.unit is None:
            return _PASS
        return unit_verdict(answer[1])

    # --- stdin and stdout ---

    def _stdio_case(self, case: Case) -> TestResult:
        """The program as a script, in a guest of its own. What it printed is compared here, and its exit status is
        the zygote's word, so nothing that the guest says can make a pass.
        """
        session = self._new_session(case.stdin, apart=True)
        answer: list[Any] = ["ok", None]

        def run() -> None:
            answer[:] = session.request("script", *self._request.program())
            if answer[0] != "syntax":
                session.await_end()

        fault = self._guarded(run)
        self._session = None
        self._findings.cpu_s += session.cpu_s()
        most = self._resources.output
        printed, full = read_output(session.guest.output, most), is_full(session.guest.output, most)
        status = self._zygote.bury_and_wait(session.guest)
        if fault is not None and fault.error_type != "ProcessExit":
            return fault
        if answer[0] == "syntax":
            self._stuck = self._syntax_error(answer)
            return self._stuck
        self._findings.output.append(printed[: self._limits.max_output_bytes])
        if status and answer[0] == "raise":
            return TestResult("error", *reported(answer))
        if os.WIFSIGNALED(status):
            return TestResult("crash", "ProcessExit", explained(status))
        if status:
            return TestResult("error", "SystemExit", explained(status))
        if full:
            return TestResult("fail", "WrongOutput", f"more than {most} bytes were printed")
        got, wanted = lines(printed), lines(case.stdout)
        return _PASS if same(got, wanted) else TestResult("fail", "WrongOutput", first_difference(got, wanted))
