"""Self-test of an isolation level: forbidden operations must be denied, and a correct program must get its verdict."""

from __future__ import annotations

import os

from marl_ray.sandbox.host.program import Program
from marl_ray.sandbox.host.session import SandboxSession
from marl_ray.sandbox.inside.protocol.records import Limits

_LIMITS = Limits(test_cpu_s=5.0, test_wall_s=10.0, program_wall_s=20.0)

_CORRECT = """
def f(x):
    return [x, x + 1]
"""
_WRITES_FILE = """
def f():
    with open("a", "w") as file:
        file.write("x")
    with open("a") as file:
        return file.read()
"""
_PROBES = """
import os, signal, socket

def attempt(operation, *arguments):
    try:
        operation(*arguments)
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


def run_self_test(session: SandboxSession, *, writes_files: bool) -> str | None:
    """Test a session that has just started; return None, or the first failure. `writes_files`: with scratch folders."""
    correct = session.run(Program(_CORRECT, ("assert f(1) == [1, 2]", "assert f(2) == [2, 4]"), "f", limits=_LIMITS))
    if correct.infra_error is not None:
        return correct.infra_error
    if [test.status for test in correct.tests] != ["pass", "fail"]:
        problem = next((f"{test.error_type}: {test.message}" for test in correct.tests if test.status != "pass"), "")
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
    report = session.run(
        Program(_PROBES, tuple(f"assert {call} == 'denied'" for call in calls), "read", limits=_LIMITS)
    )
    if report.infra_error is not None:
        return report.infra_error
    for call, test in zip(calls, report.tests, strict=False):
        if test.status != "pass":
            return f"self-test: {call} was not denied ({test.message})"
    return None
