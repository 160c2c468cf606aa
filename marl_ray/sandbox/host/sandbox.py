"""The sandbox: chooses an isolation level, runs programs, and survives their effects."""

from __future__ import annotations

import os
import threading
from collections.abc import Collection, Iterable, Iterator, Sequence

from marl_ray.sandbox.host.isolation_levels import SandboxSettings, SandboxUnavailable, launch_spec
from marl_ray.sandbox.host.program import ExecutionReport, Program
from marl_ray.sandbox.host.session import SandboxFailure, SandboxSession
from marl_ray.sandbox.inside.protocol.messages import Limits

_LIMITS = Limits(test_cpu_s=5.0, test_wall_s=10.0, program_wall_s=20.0)
"""Limits of the self-test."""
_CORRECT = "def f(x): return [x, x + 1]"
_WRITES_FILE = """
def f():
    with open("a", "w") as file:
        file.write("x")
    with open("a") as file:
        return file.read()
"""
_PROBES = """
import os, socket

def attempt(operation, *arguments):
    try:
        operation(*arguments)
    except OSError:
        return "denied"
    return "allowed"

def read(path): return attempt(open, path)
def write(path): return attempt(open, path, "w")
def fork(): return attempt(lambda: os.fork() or os._exit(0))
def execute(): return attempt(os.execv, "/bin/true", ["true"])
def kill(pid): return attempt(os.kill, pid, 0)
def connect(): return attempt(socket.socket, socket.AF_INET, socket.SOCK_STREAM)
def local(): return attempt(socket.socket, socket.AF_UNIX, socket.SOCK_DGRAM)
"""


class Sandbox:
    """One zygote, one judge, and guests that programs never share. Thread-safe; batches of several threads run one
    after the other.

    `without` is for tests: "bwrap" and "landlock" in this collection are treated as missing on this machine.
    """

    def __init__(self, settings: SandboxSettings | None = None, *, without: Collection[str] = ()) -> None:
        self.settings = settings or SandboxSettings()
        self._without = frozenset(without)
        self._lock = threading.RLock()
        self._session: SandboxSession | None = None
        self._earlier_restarts = 0
        self._rejected: list[str] = []

    def __enter__(self) -> Sandbox:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def level(self) -> str:
        """The active level; empty before `start`."""
        return self._session.level if self._session is not None else ""

    @property
    def restarts(self) -> int:
        """How often failed processes were replaced."""
        if self._session is None:
            return self._earlier_restarts
        return self._earlier_restarts + self._session.restarts

    def describe(self) -> str:
        """Return one line: the active level with its features, and the reasons why no stronger level is active."""
        if self._session is None:
            return "sandbox: not started"
        level = self._session.level
        zygote = self._session.facts
        facts = []
        if level != "none":
            facts.append("seccomp")
        if abi := zygote.get("landlock_abi"):
            facts.append(f"Landlock ABI {abi}")
        if self.settings.scratch_mb:
            facts.append(f"{self.settings.scratch_mb} MiB of scratch")
        if level != "none":
            facts.append(f"{zygote.get('threads') or 'any number of'} threads per guest")
        if level.startswith("process") and not zygote.get("own_mounts"):
            facts.append("mounts shared with the machine")
        facts.append(f"uid {zygote.get('uid')}")
        return "; not ".join([f"sandbox: {level} active ({', '.join(facts)})", *self._rejected])

    def start(self) -> str:
        """Start the strongest level that passes its self-test, and return the level. Raises SandboxUnavailable."""
        with self._lock:
            if self._session is not None and self._session.connection is not None:
                return self.level
            self._rejected = []
            for level in self.settings.candidates():
                reason = self.try_level(level)
                if reason is None:
                    return level
                self._rejected.append(f"{level}: {reason}")
            hint = "" if self.settings.allow_unsafe else " (allow_unsafe: true would run programs unprotected)"
            raise SandboxUnavailable("no isolation is available here: " + "; ".join(self._rejected) + hint)

    def try_level(self, level: str) -> str | None:
        """Start exactly this level and run its self-test; return None, or the reason why the level is not available.

        Raises SandboxUnavailable for a package that is not installed.
        """
        self._discard()
        if level == "bwrap" and "bwrap" in self._without:
            return "switched off"
        if level == "process+landlock" and "landlock" in self._without:
            return "Landlock is switched off"
        try:
            spec = launch_spec(level, self.settings.packages, self.settings.scratch_mb)
            if "landlock" in self._without:
                spec.config["landlock"] = "off"
            self._session = SandboxSession(spec, self.settings.limits)
            self._session.start()
            reason = _run_self_test(self._session, writes_files=self.settings.scratch_mb > 0)
        except ModuleNotFoundError as error:
            raise SandboxUnavailable(str(error)) from None
        except (OSError, SandboxFailure) as error:
            reason = " ".join(str(error).split()) or type(error).__name__
        if reason is not None:
            self._discard()
        return reason

    def _discard(self) -> None:
        """End the session, whose restarts still count."""
        self.close()
        self._earlier_restarts = self.restarts
        self._session = None

    def close(self) -> None:
        """End every process of this sandbox."""
        with self._lock:
            if self._session is not None:
                self._session.close()

    def run(self, program: Program) -> ExecutionReport:
        """Run one program. Raises ValueError for tests that cannot be parsed."""
        return self.run_batch([program])[0]

    def run_batch(self, programs: Sequence[Program]) -> list[ExecutionReport]:
        """Return the reports in the programs' order. Raises ValueError before anything runs if tests are unusable."""
        for program in programs:
            _ = program.number_of_tests  # raises
        return list(self.run_each(programs))

    def run_each(self, programs: Iterable[Program]) -> Iterator[ExecutionReport]:
        """Yield each report as soon as it is available; one program is taken ahead of the running one."""
        with self._lock:
            self.start()
            assert self._session is not None
            yield from self._session.run_each(programs)


def _run_self_test(session: SandboxSession, *, writes_files: bool) -> str | None:
    """Test a session that has just started; return None, or the first failure. `writes_files`: with scratch folders."""
    correct = session.run(Program(_CORRECT, ("assert f(1) == [1, 2]", "assert f(2) == [2, 4]"), "f", limits=_LIMITS))
    if correct.infra_error is not None:
        return correct.infra_error
    if [test.status for test in correct.tests] != ["pass", "fail"]:
        problems = [f"{test.error_type}: {test.message}" for test in correct.tests if test.status != "pass"]
        problem = problems[0] if problems else ""
        return f"self-test: a correct program does not get its verdict ({problem})"
    if session.level == "none":
        return None
    if writes_files:
        written = session.run(Program(_WRITES_FILE, ("assert f() == 'x'",), "f", limits=_LIMITS))
        if not written.passed:
            return "self-test: nothing can be written to the scratch folder"
    host = os.getpid()
    calls = [f"read('/proc/{host}/environ')", f"read('/proc/{host}/mem')", "read('/proc/1/environ')"]
    calls += ["read('/etc/passwd')", "write('/tmp/sandbox-probe')", "write('/dev/shm/sandbox-probe')"]
    calls += ["fork()", "execute()", f"kill({host})", "connect()", "local()"]
    tests = tuple(f"assert {call} == 'denied'" for call in calls)
    report = session.run(Program(_PROBES, tests, "read", limits=_LIMITS))
    if report.infra_error is not None:
        return report.infra_error
    for call, test in zip(calls, report.tests, strict=False):
        if test.status != "pass":
            return f"self-test: {call} was not denied ({test.message})"
    return None
