"""Evaluation of one program against one suite of tests."""

from __future__ import annotations

import builtins
import contextlib
import importlib
import os
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ..isolation.process import anonymous_file
from ..protocol.encoding import ProtocolError
from ..protocol.messages import TestResult
from ..suites.suite import REACHED, Case
from .assert_evaluator import AssertEvaluator
from .deadlines import DeadlineTimer
from .evaluation_context import CONTEXT, GuestFault
from .guest_session import GuestSession
from .output_comparison import first_difference, input_file, is_full, outputs_match, read_output, split_lines
from .remote_errors import clean_text, exception_text, parse_error, parse_syntax_error, parse_unittest_verdict
from .suite_request import SuiteRequest, SuiteResult
from .zygote_client import ZygoteClient, ZygoteError, describe_exit

_FAULTS = ("timeout", "crash")
_PASS = TestResult("pass")
_STUCK = TestResult("timeout", "Timeout", "the test was still computing on the program's results at its CPU limit")
_UNFINISHED = TestResult("error", "Unfinished", "the test was not evaluated to its end")


class _TestBuiltins(dict[str, Any]):
    """Builtins of the tests. A name that the tests do not define is looked up when it is read, in class bodies too;
    names in `remote` are the program's, also if they are names of builtins (`sum`)."""

    def __init__(self, lookup: Callable[[str], Any], remote: frozenset[str]) -> None:
        super().__init__(vars(builtins))
        for name in remote & self.keys():
            del self[name]
        self._lookup = lookup

    def __missing__(self, name: str) -> Any:
        return self._lookup(name)


class SuiteRunner:
    """Runner of one program against one suite, with a new guest after every fault."""

    def __init__(self, zygote: ZygoteClient, timer: DeadlineTimer, request: SuiteRequest) -> None:
        self._zygote = zygote
        self._timer = timer
        self._request = request
        self._suite = request.part.suite
        self._limits = request.limits
        self._program = (request.source, False)
        """The program for a guest, and whether it is marshalled code."""
        if request.code is not None:
            self._program = (request.code, True)
        self._guest_limits = request.guest_limits
        self._started = time.monotonic()
        self._result = SuiteResult()
        self._session: GuestSession | None = None
        self._verdicts = dict(request.verdicts)
        self._final: TestResult | None = None
        """Verdict on all further tests, once the program cannot be loaded."""
        self._last: TestResult | None = None
        self._evaluator = AssertEvaluator()
        self._units: object = None
        """The `UnitRunner` of the current guest, for unittest classes."""
        self._functions: dict[str, Any] = {}
        self._tainted: frozenset[str] = frozenset()
        """Variables in which an untrusted test may have left something."""
        self._globals: dict[str, Any] = {"__builtins__": _TestBuiltins(self._lookup, self._suite.remote)}

    def run(self) -> SuiteResult:
        """Return the verdicts on all cases. Raises ZygoteError if no guest can be started."""
        numbered = list(zip(self._request.part.numbers, self._suite.cases, strict=True))
        try:
            if self._suite.form == "stdio":
                self._run_cases(numbered, self._run_script)
            else:
                in_judge = [(number, case) for number, case in numbered if not case.in_guest]
                if in_judge:
                    self._globals |= {"__name__": "tests", **self._evaluator.names()}
                    for code in self._suite.helpers:
                        with contextlib.suppress(Exception):  # e.g. a missing import: tests that need it will fail
                            exec(code, self._globals)
                    self._run_cases(in_judge, self._evaluate_in_judge)
                    self._end_session()
                # These run in a process of their own, since that process knows the tests that run in it.
                in_guest = [(number, case) for number, case in numbered if case.in_guest]
                self._run_cases(in_guest, self._run_in_guest)
        finally:
            self._end_session()
        self._result.verdicts = [self._verdicts[number] for number, _ in numbered]
        return self._result

    def _run_cases(self, cases: list[tuple[int, Case]], run_case: Callable[[Case], TestResult]) -> None:
        """Record a verdict for every case; cases after the budget is used up are skipped."""
        result = self._result
        limits = self._limits
        first = 0
        for position, (number, _) in enumerate(cases, 1):
            earlier = self._request.verdicts.get(number)
            if earlier is not None and earlier.status in _FAULTS:
                first = position
        for number, case in cases[first:]:  # no replay of tests that a new guest follows
            exhausted = result.timeouts >= limits.max_timeouts or result.crashes >= limits.max_crashes
            if self._final is not None:
                verdict = self._final
            elif exhausted or self._wall_left() <= 0:
                verdict = TestResult("skipped", "Skipped", "the program's budget was used up")
            else:
                may_run = self._request.begin(number)
                verdict = self._last = run_case(case) if may_run else _STUCK
                result.timeouts += verdict.status == "timeout"
                result.crashes += verdict.status == "crash"
            self._verdicts[number] = verdict

    def _wall_left(self) -> float:
        return self._limits.program_wall_s - (time.monotonic() - self._started)

    # --- the guest ---

    def _new_session(self, *streams: int) -> GuestSession:
        """Start a session with a guest that has not loaded the program yet (see `ZygoteClient.fork`); close
        `streams`."""
        try:
            guest = self._zygote.fork(self._guest_limits, *streams)
        finally:
            for stream in streams:
                os.close(stream)
        if not streams:
            self._zygote.prepare_spare(self._guest_limits)
        self._timer.cpu.pin_guest(guest.pid)
        self._session = GuestSession(guest, self._guest_limits.reply)
        return self._session

    def _loaded_session(self) -> GuestSession | TestResult:
        """Return the session of the tests, restarted after a fault, or the verdict if the program cannot be loaded."""
        if self._session is not None and self._session.fault is None:
            return self._session
        self._end_session()
        stdin = self._request.stdin
        session = self._new_session() if stdin is None else self._new_session(input_file(stdin))
        answer: list[Any] = []

        def load() -> None:
            for source in self._suite.classes:
                session.request("prepare", source)
            answer.extend(session.request("load", *self._program, sorted(self._suite.remote)))
            if answer[0] == "ok" and type(answer[1]) is dict:
                self._make_proxies(session, answer[1])

        verdict = self._guarded(session, load)
        if verdict is None and answer[0] == "syntax":
            verdict = self._syntax_error(answer)
        elif verdict is None and answer[0] == "raise":
            verdict = TestResult("error", *parse_error(answer))
        elif verdict is None and type(answer[1]) is dict:
            return session
        self._final = verdict or TestResult("crash", "ProtocolError", "malformed answer to load")
        return self._final

    def _make_proxies(self, session: GuestSession, callables: dict[str, Any]) -> None:
        """Make proxies of the program's callables; its other names are requested when they are read."""
        known = [name for name in self._suite.remote if type(callables.get(name)) is list]
        make = session.objects.proxy
        try:
            self._functions = {name: make([name, *callables[name][1:]], self.current_session) for name in known}
        except ProtocolError as error:
            raise session.violation(str(error)) from None

    def _lookup(self, name: str) -> Any:
        """Return the value of a name that the tests do not define. Raises KeyError for builtins and unknown names."""
        if name in self._suite.standard:
            module, _, member = self._suite.standard[name].partition(":")
            imported = importlib.import_module(module)
            return getattr(imported, member) if member else imported
        if name in self._functions:
            return self._functions[name]
        if name not in self._suite.remote:
            raise KeyError(name)
        return self.current_session().fetch("name", name)

    def current_session(self) -> GuestSession:
        """Return the current session, in which the program's functions exist again after a fault."""
        assert self._session is not None
        return self._session

    def _syntax_error(self, answer: list[Any]) -> TestResult:
        error = self._result.syntax_error = parse_syntax_error(answer)
        return TestResult("error", "SyntaxError", error.message, error.line)

    def _end_session(self) -> None:
        """Record the guest's output and CPU seconds, and kill it."""
        session = self._session
        if session is None:
            return
        self._session = None
        session.closed = True
        self._result.cpu_s += session.cpu_s()
        limit = self._limits.max_output_bytes - sum(map(len, self._result.output))
        if self._suite.form != "stdio" and limit > 0:
            self._result.output.append(read_output(session.guest.output, limit))
        self._timer.cpu.release(session.guest.pid)  # process exit is work that another CPU may take
        if session.fault is None or session.fault.status == "timeout":
            self._zygote.kill(session.guest)
            return
        ending = describe_exit(self._zygote.kill_and_wait(session.guest))
        for verdict in filter(None, (self._last, self._final)):
            if verdict.error_type == "ProcessExit" and not verdict.message:
                described = replace(verdict, message=ending)
                for number, old in self._verdicts.items():
                    if old is verdict:
                        self._verdicts[number] = described
                if self._final is verdict:
                    self._final = described

    def _guarded(self, session: GuestSession, action: Callable[[], object]) -> TestResult | None:
        """Run an action under the limits of one test; return a verdict if the guest failed, else None."""
        wall = min(self._limits.test_wall_s, self._wall_left())
        try:
            with self._timer.limit(session, self._limits.test_cpu_s, wall):
                action()
        except GuestFault:
            pass
        fault = session.fault
        if fault is None:
            return None
        return TestResult(fault.status, fault.error_type, fault.message)

    # --- asserts ---

    def _evaluate_in_judge(self, case: Case) -> TestResult:
        """Evaluate a test. Its verdict is an error until it has run to its end against the live, current guest."""
        session = self._loaded_session()
        if isinstance(session, TestResult):
            return session
        self._evaluator.last_message = ""
        CONTEXT.reset(case.compares)
        self._globals[REACHED] = set()
        verdict = _UNFINISHED

        def evaluate() -> None:
            nonlocal verdict
            try:
                if case.unit is None:
                    assert case.code is not None
                    exec(case.code, self._globals)
                else:
                    self._evaluate_unit(session, case, *case.unit)
                verdict = _PASS
            except (GuestFault, ZygoteError):
                raise
            except BaseException as error:
                verdict = self._verdict_on(error, case)

        fault = self._guarded(session, evaluate)
        untrusted = CONTEXT.untrusted or bool(case.variables.reads & self._tainted)
        if untrusted:
            self._tainted |= case.variables.touches
        if fault is not None:
            return fault
        if self._session is not session or session.closed:
            return TestResult("error", "Unfinished", "the program's process was replaced during the test")
        if CONTEXT.refusal is not None and (verdict.status != "error" or verdict.error_type == "Refused"):
            return TestResult("error", "TypeError", CONTEXT.refusal)
        return replace(verdict, trusted=False) if untrusted else verdict

    def _evaluate_unit(self, session: GuestSession, case: Case, class_name: str, method: str) -> None:
        from .unit_runner import UnitRunner  # not in the zygote, where every module makes each fork dearer

        if not isinstance(self._units, UnitRunner) or self._units.session is not session:
            assert self._suite.module is not None
            self._units = UnitRunner(session, self._suite.module, self._globals)
        self._units.run(class_name, method)
        if case.asserts and not self._globals[REACHED]:
            raise RuntimeError("no assertion was reached")

    def _verdict_on(self, error: BaseException, case: Case) -> TestResult:
        """Return the verdict on a test that raised an exception."""
        remote = getattr(error, "remote", None)  # type, message and line of an error of the program
        if remote is not None:
            return TestResult("error", *remote)
        if isinstance(error, AssertionError):
            # unittest's methods say themselves what differs.
            message = clean_text(exception_text(error)) if case.unit is not None else ""
            return TestResult("fail", "AssertionError", message or self._evaluator.explain(error))
        kind = type(error).__name__
        text = clean_text(exception_text(error))
        if kind == "SkipTest":
            return TestResult("skipped", kind, text)
        return TestResult("error", kind, text)

    # --- tests that run in the guest ---

    def _run_in_guest(self, case: Case) -> TestResult:
        fresh = self._session is None or self._session.fault is not None
        session = self._loaded_session()
        if isinstance(session, TestResult):
            return session
        answer: list[Any] = []

        def ask() -> None:
            if fresh and self._suite.form == "unittest":
                answer[:] = session.request("define", self._suite.source, True)
                if answer[0] != "ok":
                    return
            elif fresh:
                # A failed definition counts only for the tests that need its names.
                for definition in self._suite.preamble:
                    session.request("define", *definition)
            if case.unit is None:
                answer[:] = session.request("test", case.for_guest)
            else:
                answer[:] = session.request("unit", *case.unit)

        fault = self._guarded(session, ask)
        if fault is not None:
            return fault
        if answer[0] not in ("ok", "raise"):
            return TestResult("crash", "ProtocolError", "answer of the wrong kind")
        if answer[0] == "raise":
            error_type, message, line = parse_error(answer)
            if error_type == "AssertionError":
                return TestResult("fail", error_type, message, line)
            return TestResult("error", error_type, message, line)
        return _PASS if case.unit is None else parse_unittest_verdict(answer[1])

    # --- stdin and stdout ---

    def _run_script(self, case: Case) -> TestResult:
        """Run the program as a script in a guest of its own.

        The judge compares the output and the zygote reports the exit status, so no answer of the guest can make a pass.
        """
        session = self._new_session(input_file(case.stdin), anonymous_file("errors"))
        answer: list[Any] = ["ok", None]

        def run() -> None:
            answer[:] = session.request("script", *self._program)
            if answer[0] != "syntax":
                session.wait_for_exit()

        fault = self._guarded(session, run)
        self._session = None
        self._result.cpu_s += session.cpu_s()
        # More than this cannot be right. The guest's own limit is far higher, and tells nothing.
        limit = self._limits.max_output_bytes + 2 * len(case.stdout.encode("utf-8", "replace"))
        printed = read_output(session.guest.output, limit)
        full = is_full(session.guest.output, limit)  # asked now: ending the guest closes the descriptor
        status = self._zygote.kill_and_wait(session.guest)
        if fault is not None and fault.error_type != "ProcessExit":
            return fault
        if answer[0] == "syntax":
            self._final = self._syntax_error(answer)
            return self._final
        self._result.output.append(printed[: self._limits.max_output_bytes])
        if status and answer[0] == "raise":
            return TestResult("error", *parse_error(answer))
        if os.WIFSIGNALED(status):
            return TestResult("crash", "ProcessExit", describe_exit(status))
        if status:
            return TestResult("error", "SystemExit", describe_exit(status))
        if full:
            beyond = self._limits.max_output_bytes
            message = f"more than {beyond} bytes were printed beyond twice the expected output"
            return TestResult("fail", "WrongOutput", message)
        got = split_lines(printed)
        expected = split_lines(case.stdout)
        if outputs_match(got, expected):
            return _PASS
        return TestResult("fail", "WrongOutput", first_difference(got, expected))
