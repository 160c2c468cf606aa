"""How a level proves itself before anything is entrusted to it: probes must be denied, a good program must
pass.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from marl_ray.sandbox.host.program import Program
from marl_ray.sandbox.inside.protocol.records import Limits

if TYPE_CHECKING:
    from marl_ray.sandbox.host.sandbox import Sandbox

_LIMITS = Limits(test_cpu_s=5.0, test_wall_s=10.0, program_wall_s=20.0)

_GOOD = Program("def f(x):\n    return [x, x + 1]\n", ("assert f(1) == [1, 2]", "assert f(2) == [2, 4]"), "f")

_WRITING = """
def f():
    with open("a", "w") as file:
        file.write("x")
    with open("a") as file:
        return file.read()
"""

_PROBES = """
import os, signal, socket

def attempt(what, *arguments):
    try:
        what(*arguments)
    except OSError:
        return "denied"
    return "allowed"

def read(path):
    return attempt(lambda: open(path).close())

def write(path):
    return attempt(lambda: open(path, "w").close())

def fork():
    def child():
        if os.fork() == 0:
            os._exit(0)
    return attempt(child)

def execute():
    return attempt(os.execv, "/bin/true", ["true"])

def kill(pid):
    return attempt(os.kill, pid, 0)

def connect():
    return attempt(lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM).close())

def local():
    return attempt(lambda: socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).close())
"""


def _probes(owner: int) -> list[str]:
    """Calls that must all come back "denied"."""
    calls = [f"read('/proc/{owner}/environ')", f"read('/proc/{owner}/mem')", "read('/proc/1/environ')"]
    calls += ["read('/etc/passwd')", "write('/tmp/sandbox-probe')", "write('/dev/shm/sandbox-probe')"]
    return [*calls, "fork()", "execute()", f"kill({owner})", "connect()", "local()"]


def run_self_test(sandbox: Sandbox, level: str) -> str | None:
    """Run the probes in a sandbox that has just come up; gives None, or what is wrong with it."""
    good = sandbox.run_on_current_level(Program(_GOOD.source, _GOOD.tests, "f", limits=_LIMITS))
    if good.infra_error is not None:
        return good.infra_error
    if [test.status for test in good.tests] != ["pass", "fail"]:
        problem = next((f"{test.error_type}: {test.message}" for test in good.tests if test.status != "pass"), "")
        return f"a good program does not get its verdict ({problem})"
    if level == "none":
        return None
    if sandbox.settings.scratch_mb:
        written = sandbox.run_on_current_level(Program(_WRITING, ("assert f() == 'x'",), "f", limits=_LIMITS))
        if not written.passed:
            return "self-test: nothing can be written to the scratch folder"
    calls = _probes(os.getpid())
    tests = tuple(f"assert {call} == 'denied'" for call in calls)
    report = sandbox.run_on_current_level(Program(_PROBES, tests, "read", limits=_LIMITS))
    if report.infra_error is not None:
        return report.infra_error
    for call, test in zip(calls, report.tests, strict=False):
        if test.status != "pass":
            return f"self-test: {call} was not denied ({test.message})"
    return None
