"""What an attack is, and the code that attacks share inside the guest.

An attack is a program that a policy might write to get a reward it has not earned, to reach the host, or
to bring the sandbox down. Its tests ask for WANTED, a random word made for each run that only the tests
contain: no attack can answer it, so any `pass` is a forged one.

Attacks that try to do something forbidden say so themselves, through `attempt`: they raise `RuntimeError`
with "ESCAPED ..." where something worked and "CONTAINED n" where nothing did. The suite demands the second, so
an attack that never reached its payload (a typo, a missing module) fails its test as well.

Words in the sources that stand between @ signs are filled in by the suite: see `Scene` in host.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

WANTED_PREFIX = "WANT-"
"""Every wanted word starts so. Attacks that look for it spell it backwards: their own source is in memory."""

SECRET_PREFIX = "SECRET-"
"""The same for what the host keeps from the guest: its environment, its files, its memory."""

SUITE_LIMITS: dict[str, Any] = {
    "test_cpu_s": 0.3,
    "test_wall_s": 0.6,
    "program_wall_s": 2.0,
    "max_timeouts": 1,
    "max_crashes": 1,
    "memory_mb": 128,
}
"""Short, since many attacks only end there. Those that report by themselves get time for it instead."""

REPORTING_LIMITS: dict[str, Any] = {
    **SUITE_LIMITS,
    "test_cpu_s": 5.0,
    "test_wall_s": 15.0,
    "program_wall_s": 30.0,
}


@dataclass(frozen=True)
class Attack:
    """One hostile program.

    `tests` may use @WANTED@. `contained` says the program reports through `attempt`, so "CONTAINED" must be
    read in the report. `statuses`, where given, are the only verdicts allowed. `after` is a second program,
    run right after in the same sandbox, that looks for what the first one left; it reports through `attempt`
    too. `judge_may_die` is for tests that compute endlessly with what they get. `untrusted` allows a forged
    pass provided the report says `trusted: false`. `program` are further fields.
    """

    name: str
    purpose: str
    source: str
    tests: str | tuple[str, ...] = ("assert f(1) == '@WANTED@'", "assert f([1, 2]) == ['@WANTED@']")
    contained: bool = False
    statuses: tuple[str, ...] = ()
    after: str | None = None
    judge_may_die: bool = False
    untrusted: bool = False
    limits: dict[str, Any] = field(default_factory=dict)
    program: dict[str, Any] = field(default_factory=dict)


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
    """A system call by number, past every wrapper of Python and libc; OSError where it fails."""
    number = x86 if X86 else arm
    if libc is None or number is None:
        raise OSError(errno.ENOSYS, "cannot call")
    result = libc.syscall(*[ctypes.c_long(a) if isinstance(a, int) else a for a in (number, *args)])
    if result == -1:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result

def attempt(actions):
    """Tries every (name, action). An action that returns None or False was denied; anything else escaped."""
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
    """Makes an action count by the mere fact that it did not raise."""
    def run():
        action()
        return True
    return run
'''

SOCKETS = r'''
import os, socket, stat, struct, json, threading, time

def sockets():
    """Every socket this process holds, as objects that do not close them: one of them leads to the judge."""
    found = []
    for fd in range(3, 256):
        try:
            if stat.S_ISSOCK(os.fstat(fd).st_mode):
                found.append(fd)
        except OSError:
            pass
    return found

def wrap(fd):
    """A socket object over a copy of a descriptor, made without asking the kernel what it is."""
    return socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, fileno=os.dup(fd))

def shout(data):
    """Writes bytes to every socket, whatever happens; where none is left, raises."""
    for fd in sockets():
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(fd, view):]
            except BlockingIOError:
                time.sleep(0.001)

def frame(value):
    """Bytes with their length in front."""
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return struct.pack("<I", len(data)) + data
'''
