"""One program against one suite of tests, in the judge: verdict by verdict."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from .codec import ProtocolError, decode
from .process import anonymous_file
from .recorder import Recorder
from .remote import CannotCross, Fault, Handle, Session, clean_line, clean_text
from .stdio import first_difference, input_file, lines, read_output
from .testforms import COMPARE, TRUTH, Case, Suite
from .watch import Watch
from .zygote_link import GuestLimits, ZygoteClient, ZygoteError, explained

_MESSAGE = 500


@dataclass(slots=True)
class Verdict:
    """One test's outcome, the fields of `report.TestResult` but the source."""

    status: str
    error_type: str | None = None
    message: str | None = None
    line: int | None = None


@dataclass(slots=True)
class Request:
    """One program as the owner sends it, and its code (see `compilation`)."""

    source: str
    code: str | None
    suite: Suite
    limits: dict[str, Any]
    stdin: str | None

    def program(self) -> tuple[str, bool]:
        """What a guest loads, and whether that is code."""
        return (self.source, False) if self.code is None else (self.code, True)


@dataclass(slots=True)
class Outcome:
    """What has been found out about a program so far."""

    verdicts: list[Verdict] = field(default_factory=list)
    syntax_error: dict[str, Any] | None = None
    output: list[str] = field(default_factory=list)
    cpu_s: float = 0.0
    timeouts: int = 0
    crashes: int = 0
    in_guest: bool = False

    def add(self, part: Outcome) -> None:
        """Take over what has been found out with a part of the tests, but for the verdicts."""
        self.syntax_error = part.syntax_error
        self.output += part.output
        self.cpu_s += part.cpu_s
        self.in_guest |= part.in_guest


class Execution:
    """One program against one suite."""

    def __init__(self, zygote: ZygoteClient, watch: Watch, request: Request, started: float) -> None:
        self._zygote = zygote
        self._watch = watch
        self._request = request
        self._suite = request.suite
        self._limits = request.limits
        self._started = started
        self._outcome = Outcome()
        self._guest_limits = _guest_limits(request)
        self._session: Session | None = None
        self._stuck: Verdict | None = None
        self._names: dict[str, Any] = {}

    def run(self) -> Outcome:
        """All verdicts. CannotCross when the tests turn out to need the guest; ZygoteError without a guest."""
        suite = self._suite
        try:
            if suite.form == "stdio":
                self._each(self._stdio_case)
            elif suite.in_guest:
                self._outcome.in_guest = True
                self._each(self._guest_case)
            else:
                self._names = self._namespace()
                self._recorder = Recorder()
                self._names |= {COMPARE: self._recorder.compare, TRUTH: self._recorder.truth}
                self._each(self._judge_case)
        finally:
            self._end_session()
        return self._outcome

    def _each(self, judge_case: Callable[[Case], Verdict]) -> None:
        """A verdict for every case; what follows once the budget is used up is skipped."""
        outcome, limits = self._outcome, self._limits
        for case in self._suite.cases:
            if self._stuck is not None:
                outcome.verdicts.append(self._stuck)
                continue
            if (
                outcome.timeouts >= limits["max_timeouts"]
                or outcome.crashes >= limits["max_crashes"]
                or self._wall_left() <= 0
            ):
                outcome.verdicts.append(Verdict("skipped", "Skipped", "the program's budget was used up"))
                continue
            verdict = judge_case(case)
            outcome.timeouts += verdict.status == "timeout"
            outcome.crashes += verdict.status == "crash"
            outcome.verdicts.append(verdict)

    def _wall_left(self) -> float:
        return self._limits["program_wall_s"] - (time.monotonic() - self._started)

    # --- the guest ---

    def _new_session(self, stdin: str | None, *, apart: bool = False) -> Session:
        """A session with a guest that has not loaded the program yet. `apart`: standard error is not kept."""
        limits = self._guest_limits
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
        self._watch.place.bring(guest.pid)
        self._session = Session(guest, limits.reply)
        return self._session

    def _loaded_session(self) -> Session | None:
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
                self._take_constants(session, answer[1])

        fault = self._guarded(load)
        if fault is not None:
            self._stuck = fault
        elif answer[0] == "syntax":
            self._stuck = self._syntax_error(answer)
        elif answer[0] == "raise":
            self._stuck = Verdict("error", *_reported(answer))
        elif type(answer[1]) is dict:
            return session
        if self._stuck is None:
            self._stuck = Verdict("crash", "ProtocolError", "malformed answer to load")
        return None

    def _take_constants(self, session: Session, plain: dict[str, Any]) -> None:
        """What the program's names stand for in the tests: plain data as such, anything else by a stand-in."""
        if self._names:
            for name in self._suite.remote:
                self._names[name] = (
                    session.decoded(plain[name]) if name in plain else Handle(self._current, name, name, False)
                )

    def _syntax_error(self, answer: list[Any]) -> Verdict:
        message, line, column = clean_text(answer[1]), clean_line(answer[2]), clean_line(answer[3])
        self._outcome.syntax_error = {"message": message, "line": line, "column": column}
        return Verdict("error", "SyntaxError", message, line)

    def _end_session(self) -> None:
        """Take over what the guest has printed and used, and have it buried."""
        session, self._session = self._session, None
        if session is None:
            return
        self._outcome.cpu_s += session.cpu_s()
        limit = self._limits["max_output_bytes"] - sum(map(len, self._outcome.output))
        if self._suite.form != "stdio" and limit > 0:
            self._outcome.output.append(read_output(session.guest.output, limit))
        self._watch.place.leave(session.guest.pid)  # its end is work, which another CPU may have time for
        if session.fault is None or session.fault.status == "timeout":
            self._zygote.bury(session.guest)
            return
        ending = explained(self._zygote.bury_and_wait(session.guest))
        for verdict in (*self._outcome.verdicts[-1:], *([self._stuck] if self._stuck else [])):
            if verdict.error_type == "ProcessExit" and not verdict.message:
                verdict.message = ending

    def _guarded(self, action: Callable[[], object]) -> Verdict | None:
        """Do something with the guest under one test's limits. -> a verdict if the guest did not survive it."""
        session = self._session
        assert session is not None
        wall = min(self._limits["test_wall_s"], self._wall_left())
        try:
            with self._watch.armed(session, self._limits["test_cpu_s"], wall):
                action()
        except Fault:
            pass
        fault = session.fault
        return None if fault is None else Verdict(fault.status, fault.error_type, fault.message)

    # --- asserts ---

    def _namespace(self) -> dict[str, Any]:
        """Globals of the tests: what the prompt defines. What the program defines comes when it is loaded."""
        names: dict[str, Any] = {"__name__": "tests"}
        for code in self._suite.helpers:
            try:
                exec(code, names)
            except Exception:  # an import that is not there, say; tests that need it will say so
                continue
        return names

    def _current(self) -> Session:
        assert self._session is not None
        return self._session

    def _judge_case(self, case: Case) -> Verdict:
        session = self._loaded_session()
        if session is None:
            assert self._stuck is not None
            return self._stuck
        self._recorder.clear()
        verdict = Verdict("pass")

        def evaluate() -> None:
            nonlocal verdict
            assert case.code is not None
            try:
                exec(case.code, self._names)
            except (Fault, CannotCross, ZygoteError):
                raise
            except AssertionError as error:
                remote = getattr(error, "remote", None)
                if remote is None:
                    verdict = Verdict("fail", "AssertionError", self._recorder.explain(error))
                else:
                    verdict = Verdict("error", *remote)
            except BaseException as error:
                remote = getattr(error, "remote", None)
                verdict = Verdict("error", *(remote or _local(error)))

        return self._guarded(evaluate) or verdict

    # --- tests that run in the guest ---

    def _guest_case(self, case: Case) -> Verdict:
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

        fault = self._guarded(ask)
        if fault is not None:
            return fault
        if answer[0] not in ("ok", "raise"):
            return Verdict("crash", "ProtocolError", "answer of the wrong kind")
        if answer[0] == "raise":
            error_type, message, line = _reported(answer)
            return Verdict("fail" if error_type == "AssertionError" else "error", error_type, message, line)
        if case.unit is None:
            return Verdict("pass")
        return _unit_verdict(answer[1])

    # --- stdin and stdout ---

    def _stdio_case(self, case: Case) -> Verdict:
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
        self._outcome.cpu_s += session.cpu_s()
        printed = read_output(session.guest.output, self._guest_limits.output)
        status = self._zygote.bury_and_wait(session.guest)
        if fault is not None and fault.error_type != "ProcessExit":
            return fault
        if answer[0] == "syntax":
            self._stuck = self._syntax_error(answer)
            return self._stuck
        self._outcome.output.append(printed[: self._limits["max_output_bytes"]])
        if status and answer[0] == "raise":
            return Verdict("error", *_reported(answer))
        if os.WIFSIGNALED(status):
            return Verdict("crash", "ProcessExit", explained(status))
        if status:
            return Verdict("error", "SystemExit", explained(status))
        if lines(printed) == lines(case.stdout):
            return Verdict("pass")
        return Verdict("fail", "WrongOutput", first_difference(lines(printed), lines(case.stdout)))


def _guest_limits(request: Request) -> GuestLimits:
    limits = request.limits
    output = limits["max_output_bytes"]
    if request.suite.form == "stdio":
        output += 2 * max(len(case.stdout.encode("utf-8", "replace")) for case in request.suite.cases)
    return GuestLimits(
        memory_mb=limits["memory_mb"],
        cpu_s=int(2 * limits["program_wall_s"]) + 2,
        output=output,
        reply=limits["max_reply_bytes"],
    )


def _reported(answer: list[Any]) -> tuple[str, str, int | None]:
    _, name, message, line, _ = answer
    return clean_text(name, 80) or "Exception", clean_text(message, _MESSAGE), clean_line(line)


def _local(error: BaseException) -> tuple[str, str, None]:
    """An exception of the test itself, raised here."""
    return type(error).__name__, clean_text(str(error), _MESSAGE), None


def _unit_verdict(wire: Any) -> Verdict:
    try:
        status, error_type, message = decode(wire)
    except (ProtocolError, TypeError, ValueError):
        status, error_type, message = "", None, None
    if status == "pass":
        return Verdict("pass")
    if status not in ("fail", "error", "skipped"):
        return Verdict("crash", "ProtocolError", "malformed verdict")
    return Verdict(status, clean_text(error_type, 80), clean_text(message, _MESSAGE))
