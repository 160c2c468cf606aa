"""The owner: starts a sandbox, feeds it programs, and survives whatever happens in it."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any

from marl_ray.sandbox.host.batch import ProgramBatch
from marl_ray.sandbox.host.connection import SandboxConnection, SandboxFailure
from marl_ray.sandbox.host.execution_report import ExecutionReport
from marl_ray.sandbox.host.isolation_settings import SandboxSettings, SandboxUnavailable
from marl_ray.sandbox.host.program import Program, count_tests
from marl_ray.sandbox.host.self_test import run_self_test
from marl_ray.sandbox.host.spawn import LaunchSpec, launch_spec
from marl_ray.sandbox.inside.protocol import frames

_START_S = 30.0


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
        self.connection: SandboxConnection | None = None
        self._launch: LaunchSpec | None = None
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
        if self.settings.scratch_mb:
            facts.append(f"{self.settings.scratch_mb} MiB of scratch")
        if self.level != "none":
            facts.append(f"{self._facts.get('threads') or 'any number of'} threads a guest")
        facts.append(f"uid {self._facts.get('uid')}")
        line = f"sandbox: {self.level} active ({', '.join(facts)})"
        return line + "".join(f"; not {reason}" for reason in self._refused)

    def start(self) -> str:
        """Try the levels, best first, until one proves itself: that level. Raises SandboxUnavailable if none does."""
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
        """Start exactly this level and have it run_self_test itself; gives None, or the reason why it is not to be had.

        Raises SandboxUnavailable for a package that is not installed.
        """
        if level == "bwrap" and "bwrap" in self._without:
            return "switched off"
        if level == "process+landlock" and "landlock" in self._without:
            return "Landlock is switched off"
        try:
            launch = launch_spec(level, self.settings.packages, self.settings.scratch_mb)
            if "landlock" in self._without:
                launch.config["landlock"] = "off"
            self._launch = launch
            self._connect()
            reason = run_self_test(self, level)
        except ModuleNotFoundError as error:
            raise SandboxUnavailable(str(error)) from None
        except (OSError, SandboxFailure) as error:
            reason = " ".join(str(error).split()) or type(error).__name__
        if reason is not None:
            self.close()
            self._launch = None
        return reason

    def _connect(self) -> None:
        """Start the chosen level's processes. Raises OSError or SandboxFailure when they do not come up."""
        assert self._launch is not None
        self._disconnect()
        deadline = time.monotonic() + _START_S
        self.connection = SandboxConnection(self._launch)
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
        """The report on one program. Raises ValueError for tests that cannot be parsed."""
        return self.run_batch([program])[0]

    def run_batch(self, programs: Sequence[Program]) -> list[ExecutionReport]:
        """Reports in the order of the programs. Raises ValueError, before anything runs, for unusable tests."""
        for program in programs:
            count_tests(program.tests, program.entry_point, program.form)
        return list(self.run_each(programs))

    def run_each(self, programs: Iterable[Program]) -> Iterator[ExecutionReport]:
        """As `run_batch`, each report as soon as it is there; one program is taken ahead of the one running."""
        with self._lock:
            self.start()
            yield from ProgramBatch(self, programs).reports()

    def next_number(self) -> int:
        """For the batch: a number no program of this sandbox has had."""
        return next(self._numbers)

    def restart(self) -> None:
        """For the batch: replace processes that broke, on the same level. Raises SandboxUnavailable if that fails."""
        self.restarts += 1
        try:
            self._connect()
        except (OSError, SandboxFailure) as error:
            self._disconnect()
            raise SandboxUnavailable(f"the sandbox cannot be restarted: {error}") from None

    def run_on_current_level(self, program: Program) -> ExecutionReport:
        """As `run`, on the level being tried (for the self-test)."""
        return next(ProgramBatch(self, [program]).reports())
