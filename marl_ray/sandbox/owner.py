"""The owner: starts a sandbox, feeds it programs, and survives whatever happens in it."""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal

from .connection import Broken, Connection
from .inside import frames
from .launch import LEVELS, Launch, plan
from .report import ExecutionReport, Limits, Program, count_tests, failed_report

_START_S = 30.0
_GRACE_S = 10.0
"""How long past a program's own wall limit a judge may be silent before it is taken for stuck."""
_AHEAD_BYTES = 65536
"""A program up to this size is sent while the one before it still runs; it fits the socket's buffer."""


class SandboxUnavailable(Exception):
    """No acceptable level of isolation can be had here; the message says why in one line."""


@dataclass(frozen=True, slots=True)
class SandboxSettings:
    """How programs are to be isolated.

    `isolation`: "auto" takes the best level that proves itself here; "bwrap" and "none" exactly that one;
    "process" with Landlock where there is Landlock. `require`: a level (see `launch.LEVELS`) below which to
    refuse. `allow_unsafe`: let "auto" fall back to "none" and accept "none" at all. `limits`: for programs
    without their own.
    """

    isolation: Literal["auto", "bwrap", "process", "none"] = "auto"
    require: str | None = None
    allow_unsafe: bool = False
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        if self.isolation not in ("auto", "bwrap", "process", "none"):
            raise ValueError(f"sandbox.isolation: unknown value {self.isolation!r}")
        if self.require is not None and self.require not in LEVELS:
            raise ValueError(f"sandbox.require: unknown level {self.require!r}; known are {', '.join(LEVELS)}")

    def candidates(self) -> list[str]:
        """Levels to try, best first. SandboxUnavailable when the settings contradict each other."""
        levels = {
            "auto": ["bwrap", "process+landlock", "process", "none"],
            "bwrap": ["bwrap"],
            "process": ["process+landlock", "process"],
            "none": ["none"],
        }[self.isolation]
        if self.isolation == "none" and not self.allow_unsafe:
            raise SandboxUnavailable("isolation 'none' runs programs unprotected: it needs allow_unsafe: true")
        if not self.allow_unsafe:
            levels = [level for level in levels if level != "none"]
        if self.require is not None:
            least = LEVELS.index(self.require)
            levels = [level for level in levels if LEVELS.index(level) >= least]
            if not levels:
                raise SandboxUnavailable(f"isolation '{self.isolation}' cannot reach the required '{self.require}'")
        return levels


class Sandbox:
    """One zygote, one judge, and a guest per program. Safe to use from several threads, one batch at a time.

    `without` is for tests: a collection of "bwrap" and "landlock", to be treated as if this machine had not
    got them.
    """

    def __init__(self, settings: SandboxSettings | None = None, *, without: Collection[str] = ()) -> None:
        self.settings = settings or SandboxSettings()
        self.restarts = 0
        self._without = frozenset(without)
        self._lock = threading.RLock()
        self.connection: Connection | None = None
        self._launch: Launch | None = None
        self._facts: dict[str, Any] = {}
        self._numbers = itertools.count(1)
        self.unanswered: set[int] = set()
        """For the batch: numbers of the programs that have been sent and have no report yet."""
        self._refused: list[str] = []

    def __enter__(self) -> Sandbox:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self.close()

    @property
    def level(self) -> str:
        """The active level; empty before `start`."""
        return self._launch.level if self._launch is not None else ""

    def describe(self) -> str:
        """One line: what is active, and why not more."""
        if not self.level:
            return "sandbox: not started"
        facts = []
        if self.level != "none":
            facts.append("seccomp")
        if abi := self._facts.get("landlock_abi"):
            facts.append(f"Landlock ABI {abi}")
        if self.level != "none":
            facts.append(f"{self._facts.get('threads') or 'any number of'} threads a guest")
        facts.append(f"uid {self._facts.get('uid')}")
        line = f"sandbox: {self.level} active ({', '.join(facts)})"
        return line + "".join(f"; not {reason}" for reason in self._refused)

    def start(self) -> str:
        """Try the levels, best first, until one proves itself. -> that level. SandboxUnavailable if none
        does.
        """
        with self._lock:
            if self.connection is not None:
                return self.level
            self._refused = []
            for level in self.settings.candidates():
                reason = self.try_level(level)
                if reason is None:
                    return level
                self._refused.append(f"{level}: {reason}")
            hint = "" if self.settings.allow_unsafe else " (allow_unsafe: true would run programs unprotected)"
            raise SandboxUnavailable("no isolation can be had here: " + "; ".join(self._refused) + hint)

    def try_level(self, level: str) -> str | None:
        """Start exactly this level and have it prove itself. -> None, or the reason why it is not to be had."""
        from .selftest import prove

        if level == "bwrap" and "bwrap" in self._without:
            return "switched off"
        if level == "process+landlock" and "landlock" in self._without:
            return "Landlock is switched off"
        try:
            launch = plan(level)
            if "landlock" in self._without:
                launch.config["landlock"] = "off"
            self._launch = launch
            self._connect()
            reason = prove(self, level)
        except (OSError, Broken) as error:
            reason = " ".join(str(error).split()) or type(error).__name__
        if reason is not None:
            self.close()
            self._launch = None
        return reason

    def _connect(self) -> None:
        """Start the chosen level's processes. OSError or Broken when they do not come up."""
        assert self._launch is not None
        self._disconnect()
        deadline = time.monotonic() + _START_S
        self.connection = Connection(self._launch)
        self.connection.send(frames.pack(self._launch.config), deadline)
        answer = self.connection.receive(deadline)
        if "ready" not in answer:
            raise OSError(str(answer.get("failed")))
        self._facts = answer["ready"]
        self.unanswered.clear()

    def _disconnect(self) -> None:
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.stop()

    def close(self) -> None:
        """End every process of this sandbox."""
        with self._lock:
            self._disconnect()

    def run(self, program: Program) -> ExecutionReport:
        """The report on one program. ValueError if its tests cannot be parsed."""
        return self.run_batch([program])[0]

    def run_batch(self, programs: Sequence[Program]) -> list[ExecutionReport]:
        """Reports in the order of the programs. ValueError, before anything runs, if tests cannot be parsed."""
        for program in programs:
            count_tests(program.tests, program.entry_point, program.form)
        return list(self.run_each(programs))

    def run_each(self, programs: Iterable[Program]) -> Iterator[ExecutionReport]:
        """As `run_batch`, each report as soon as it is there; one program is taken ahead of the one running."""
        with self._lock:
            self.start()
            yield from _Batch(self, programs).reports()

    def next_number(self) -> int:
        """For the batch: a number no program of this sandbox has had."""
        return next(self._numbers)

    def restart(self) -> None:
        """For the batch: replace processes that broke, on the same level. SandboxUnavailable if that fails."""
        self.restarts += 1
        try:
            self._connect()
        except (OSError, Broken) as error:
            self._disconnect()
            raise SandboxUnavailable(f"the sandbox cannot be restarted: {error}") from None

    def run_connected(self, program: Program) -> ExecutionReport:
        """As `run`, on the level being tried (for the self-test)."""
        return next(_Batch(self, [program]).reports())


@dataclass(slots=True)
class _Item:
    """A program on its way: what was sent for it, and under which number its report will come."""

    program: Program
    limits: Limits
    frame: bytes
    number: int
    sent: bool = False


class _Batch:
    """Programs on their way through one sandbox, the next one sent while one is running."""

    def __init__(self, sandbox: Sandbox, programs: Iterable[Program]) -> None:
        self._sandbox = sandbox
        self._programs = iter(programs)
        self._items: deque[_Item] = deque()

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
        self._items.append(_Item(program, limits, frames.pack(request), number))
        return True

    def _report(self, item: _Item) -> ExecutionReport:
        """Once more in a fresh sandbox if this one dies; two deaths, or a judge that is stuck, are the program's doing.
        (Not if the judge may be busy with a program of a batch that was given up.)
        """
        started = time.monotonic()
        for attempt in (1, 2):
            try:
                return self._attempt(item, ahead=attempt == 1)
            except Broken as error:
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

    def _attempt(self, item: _Item, *, ahead: bool) -> ExecutionReport:
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
            raise Broken(answer["infra_error"], infra=True)
        level = self._sandbox.level
        if level == "none":
            answer["trusted"] = False
            for test in answer["tests"]:
                test["trusted"] = False
        return ExecutionReport.from_dict({**answer, "isolation": level})

    def _send(self, item: _Item, deadline: float) -> None:
        if not item.sent:
            self._connection().send(item.frame, deadline)
            self._sandbox.unanswered.add(item.number)
            item.sent = True

    def _connection(self) -> Connection:
        connection = self._sandbox.connection
        if connection is None:
            raise Broken("the sandbox is not running")
        return connection
