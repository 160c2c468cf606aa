"""The `Attack` record, and code that attacks share inside the guest.

An attack is a program that a policy might write to get an unearned reward, to reach the host, or to stop the sandbox.
The tests of an attack ask for WANTED, a random word made for each run that only the tests contain. No attack can know
the word, so every `pass` is forged.

Attacks that try forbidden operations report through `attempt`: they raise `RuntimeError` with "ESCAPED ..." if an
operation worked and "CONTAINED n" if all n were denied. The suite requires CONTAINED, so an attack that never reaches
its payload (a typo, a missing module) fails as well.

The suite replaces words between @ signs in the sources: see `AttackTargets` in harness.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

WANTED_PREFIX = "WANT-"
"""Prefix of every wanted word. Attacks that search for the word spell the prefix backwards, because their source is in
memory."""

SECRET_PREFIX = "SECRET-"
"""Prefix of the secret that the host holds in its environment, files and memory."""

SUITE_LIMITS: dict[str, Any] = {
    "test_cpu_s": 0.3,
    "test_wall_s": 0.6,
    "program_wall_s": 2.0,
    "max_timeouts": 1,
    "max_crashes": 1,
    "memory_mb": 128,
}
"""Short limits, because many attacks run into them. Attacks that report through `attempt` get `REPORTING_LIMITS`."""

REPORTING_LIMITS: dict[str, Any] = {
    **SUITE_LIMITS,
    "test_cpu_s": 5.0,
    "test_wall_s": 15.0,
    "program_wall_s": 30.0,
}


@dataclass(frozen=True)
class Attack:
    """One hostile program and the outcome that it must have.

    Of every attack: no test passes, nothing is read, written, reached or killed outside, the judge survives, the next
    honest program gets its verdict, and no process or descriptor is left. `expectation` names the further conditions.
    """

    name: str
    purpose: str
    """The hostile operation, as an imperative sentence."""
    source: str
    tests: str | tuple[str, ...] = ("assert f(1) == '@WANTED@'", "assert f([1, 2]) == ['@WANTED@']")
    """May contain @WANTED@."""
    contained: bool = False
    """The program reports through `attempt`, and every operation must be denied."""
    statuses: tuple[str, ...] = ()
    """The permitted verdicts; empty: all but `pass`."""
    after: str | None = None
    """A second program, run next in the same sandbox, that searches for traces and reports through `attempt`."""
    untrusted: bool = False
    """A forged pass is permitted if the report has `trusted: false`."""
    limits: dict[str, Any] = field(default_factory=dict)
    program: dict[str, Any] = field(default_factory=dict)
    """Further fields of the `Program`."""

    @property
    def expectation(self) -> str:
        """The required outcome in words."""
        parts = ["a pass is marked as untrusted" if self.untrusted else "no test passes"]
        if self.contained:
            parts.append("every forbidden operation is denied")
        if self.statuses:
            parts.append(f"every verdict is one of {', '.join(self.statuses)}")
        if self.after:
            parts.append("the next program finds no trace")
        return "; ".join(parts)


PRELUDE = r'''
import os, sys, errno
try:
    import ctypes
    libc = ctypes.CDLL(None, use_errno=True)
except ImportError:
    libc = None

X86 = os.uname().machine == "x86_64"
WANTED = "-TNAW"[::-1]
SECRET = "-TERCES"[::-1]

def raw(x86, arm, *args):
    """Make a system call by number, past the wrappers of Python and libc. Raises OSError."""
    number = x86 if X86 else arm
    if libc is None or number is None:
        raise OSError(errno.ENOSYS, "cannot call")
    result = libc.syscall(*[ctypes.c_long(a) if isinstance(a, int) else a for a in (number, *args)])
    if result == -1:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result

def attempt(actions):
    """Try every (name, action). An action that returns None or False was denied; any other result is an escape."""
    escaped, denied = [], 0
    for name, action in actions:
        try:
            result = action()
        except BaseException:
            denied += 1
            continue
        if result is None or result is False:
            denied += 1
        else:
            escaped.append(f"{name}={result!r:.40}")
    if escaped:
        raise RuntimeError("ESCAPED " + ", ".join(escaped)[:400])
    raise RuntimeError(f"CONTAINED {denied}")

def true(action):
    """Count an action as an escape if it does not raise."""
    def run():
        action()
        return True
    return run
'''

SOCKETS = r'''
import os, socket, stat, struct, json, threading, time

def sockets():
    """Return the descriptors of all sockets of this process; one leads to the judge."""
    found = []
    for fd in range(3, 256):
        try:
            if stat.S_ISSOCK(os.fstat(fd).st_mode):
                found.append(fd)
        except OSError:
            pass
    return found

def wrap(fd):
    """Return a socket object over a copy of a descriptor, without asking the kernel for its family."""
    return socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, fileno=os.dup(fd))

def shout(data):
    """Write bytes to every socket."""
    for fd in sockets():
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(fd, view):]
            except BlockingIOError:
                time.sleep(0.001)

def frame(value):
    """Return bytes with their length in front."""
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return struct.pack("<I", len(data)) + data
'''
