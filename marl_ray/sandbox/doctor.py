"""`marl-ray sandbox doctor`: available kernel features and isolation levels, and advice to raise the level."""

from __future__ import annotations

import contextlib
import os
import platform
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

from marl_ray.sandbox.host.isolation_levels import LEVELS, NOBODY, SandboxSettings, interpreter
from marl_ray.sandbox.host.sandbox import Sandbox
from marl_ray.sandbox.inside.isolation import file_access, process, seccomp

_TIMEOUT_S = 10.0
_CLONE_NEWUSER = 0x10000000


def _no_new_privs() -> str:
    process.no_new_privs()
    return "yes"


def _seccomp() -> str:
    process.no_new_privs()
    seccomp.Filter(seccomp.build_filter(may_open=False)).install()
    _require_no_access("a filter can be installed but has no effect")
    return "yes"


def _landlock() -> str:
    ruleset = file_access.make_ruleset(["/usr"])
    process.no_new_privs()
    file_access.enforce(ruleset)
    _require_no_access("a ruleset can be enforced but has no effect")
    return f"yes, ABI {file_access.landlock_abi()}"


def _require_no_access(problem: str) -> None:
    with contextlib.suppress(PermissionError), open("/dev/null", encoding="utf-8"):
        raise OSError(problem)


def _user_namespaces() -> str:
    if process.libc.unshare(_CLONE_NEWUSER) != 0:
        raise OSError("not permitted")
    return "yes"


def _other_user() -> str:
    if os.geteuid() != 0:
        return f"not needed, uid is {os.geteuid()}"
    process.drop_user(NOBODY)
    return f"yes, to uid {NOBODY}"


def _bubblewrap() -> str:
    program = shutil.which("bwrap")
    if program is None:
        raise FileNotFoundError("not installed")
    command = [program, "--unshare-pid", "--unshare-net", "--ro-bind", "/", "/", "true"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=_TIMEOUT_S / 2, env={"PATH": os.defpath}, encoding="utf-8"
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        raise OSError(lines[-1] if lines else f"status {done.returncode}")
    return "yes"


_PRIMITIVES: dict[str, Callable[[], str]] = {
    "no_new_privs": _no_new_privs,
    "seccomp filters": _seccomp,
    "Landlock": _landlock,
    "user namespaces": _user_namespaces,
    "change of user": _other_user,
    "bubblewrap": _bubblewrap,
}


def _attempt(primitive: Callable[[], str]) -> str:
    """Try a primitive in a disposable child process; return its answer, or "no: reason"."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(writer, primitive().encode()[:1000])
        except Exception as error:  # any failure is an answer
            os.write(writer, f"no: {' '.join(str(error).split())}".encode()[:1000])
        finally:
            os._exit(0)
    os.close(writer)
    try:
        ready, _, _ = select.select([reader], [], [], _TIMEOUT_S)
        answer = "no: timed out"
        if ready:
            answer = os.read(reader, 1000).decode()
    finally:
        os.close(reader)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return answer or "no: the process was killed"


def _advice(features: dict[str, str], missing: dict[str, str]) -> Iterator[str]:
    bubblewrap = features.get("bubblewrap", "")
    if "bwrap" in missing and bubblewrap.endswith("not installed"):
        yield "install bubblewrap (Debian: apt-get install bubblewrap)"
    elif "bwrap" in missing and bubblewrap.startswith("no"):
        yield "allow user namespaces. On a host: kernel.unprivileged_userns_clone=1, or an AppArmor profile for bwrap"
        yield "in Docker: a seccomp profile that permits them, or --security-opt seccomp=unconfined"
    if "process+landlock" in missing:
        yield "Landlock: a kernel from 5.13 on, landlock in its lsm= list, a runtime that does not filter it"
    if "process" in missing:
        yield "the level process needs Linux on x86_64 or aarch64, with seccomp filters"


def report() -> Iterator[str]:
    """Yield the lines that `doctor` prints."""
    yield f"system      {platform.system()} {platform.release()} {platform.machine()}, uid {os.geteuid()}"
    yield f"python      {interpreter()[0]} ({platform.python_version()})"
    features: dict[str, str] = {}
    missing: dict[str, str] = {}
    if sys.platform == "linux":
        for name, primitive in _PRIMITIVES.items():
            features[name] = _attempt(primitive)
            yield f"{name:<16}{features[name]}"
    best = ""
    for level in reversed(LEVELS):
        with contextlib.closing(Sandbox(SandboxSettings(allow_unsafe=True))) as sandbox:
            reason = sandbox.try_level(level)
        if reason is None:
            best = best or level
            note = " (unprotected)" if level == "none" else ""
            yield f"level {level:<17}passes its self-test{note}"
        else:
            missing[level] = reason
            yield f"level {level:<17}no: {reason}"
    choice = f"use {best}"
    if best in ("", "none"):
        choice = "refuse to run programs here without allow_unsafe: true"
    yield f"isolation: auto would {choice}"
    for line in _advice(features, missing):
        yield f"to raise the level: {line}"
