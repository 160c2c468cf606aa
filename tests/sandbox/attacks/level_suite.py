"""Host processes of attacks: every level of this machine, as the current user and as an ordinary user."""

from __future__ import annotations

import ctypes
import functools
import json
import os
import platform
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.sandbox.attacks.attack import SECRET_PREFIX, SUITE_LIMITS

HOST = Path(__file__).with_name("harness.py")
REPOSITORY = HOST.parents[3]
ORDINARY_UID = 61234


@dataclass(frozen=True)
class Variant:
    """One way to run a sandbox on this machine. `expected` is the level that the sandbox must report."""

    name: str
    isolation: str
    expected: str
    refuse: tuple[str, ...] = ()
    ordinary_user: bool = False


def _as_user(user: bool) -> tuple[Variant, ...]:
    prefix = "user-" if user else ""
    return (
        Variant(prefix + "bwrap", "bwrap", "bwrap", (), user),
        Variant(prefix + "process+landlock", "process", "process+landlock", (), user),
        Variant(prefix + "process", "process", "process", ("landlock",), user),
    )


VARIANTS = (*_as_user(False), *(_as_user(True) if os.geteuid() == 0 else ()))


@functools.cache
def python_for(ordinary_user: bool) -> str | None:
    """Return an interpreter that this user can execute; Python below another user's home is not executable."""
    if not ordinary_user:
        return sys.executable
    for python in (
        sys.executable,
        *(shutil.which(name) or "" for name in ("python3.12", "python3.11", "python3")),
    ):
        check = "import sys; sys.exit(sys.version_info < (3, 11)); import marl_ray.sandbox"
        if not python:
            continue
        for path in (python, "/usr/bin/" + Path(python).name):
            try:
                done = subprocess.run(
                    [path, "-c", check], cwd=REPOSITORY, **_user(True), capture_output=True, timeout=60
                )
            except OSError:
                continue
            if done.returncode == 0:
                return path
    return None


def _user(ordinary: bool) -> dict[str, Any]:
    return {"user": ORDINARY_UID, "group": ORDINARY_UID, "extra_groups": []} if ordinary else {}


def why_not(variant: Variant) -> str:
    """Return why this machine lacks a level, determined without the sandbox; empty if the level must be available."""
    if sys.platform != "linux" or platform.machine() not in ("x86_64", "aarch64"):
        return "not a Linux on x86_64 or aarch64"
    if variant.isolation == "bwrap":
        command = ["bwrap", "--ro-bind", "/", "/", "--unshare-user", "--unshare-pid", "--unshare-net", "true"]
        try:
            done = subprocess.run(command, **_user(variant.ordinary_user), capture_output=True, text=True, timeout=60)
        except OSError as error:
            return f"bubblewrap: {error}"
        return f"bubblewrap: {done.stderr.strip()}" if done.returncode else ""
    if variant.expected == "process+landlock":
        version = ctypes.CDLL(None).syscall(444, None, ctypes.c_size_t(0), ctypes.c_uint32(1))
        return "the kernel has no Landlock" if version < 1 else ""
    return ""


class Host:
    """A running harness.py."""

    def __init__(self, options: dict[str, Any], ordinary_user: bool = False) -> None:
        python = python_for(ordinary_user)
        if python is None:
            raise LookupError("no Python on this machine that an ordinary user can run")
        self.secret = SECRET_PREFIX + secrets.token_hex(12)
        environment = {
            "MARL_RAY_ATTACK_KEY": self.secret,
            "PATH": os.environ.get("PATH", ""),
            "LANG": "C.UTF-8",
        }
        self.process = subprocess.Popen(
            [
                python,
                str(HOST),
                json.dumps(
                    {
                        "package": os.environ.get("MARL_RAY_PACKAGE", str(REPOSITORY)),
                        "limits": SUITE_LIMITS,
                        **options,
                    }
                ),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd="/",
            env=environment,
            **_user(ordinary_user),
        )
        self.startup = self._read()

    def _read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the host process died with status {self.process.wait()}")
        return dict(json.loads(line))

    def run(self, programs: list[dict[str, Any]]) -> dict[str, Any]:
        """Run a batch and return its reports and the damage to the host."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(programs) + "\n")
        self.process.stdin.flush()
        return self._read()

    def close(self) -> dict[str, Any]:
        """End the host process; return the processes and damage left by its sandbox."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        last = self._read() if "unavailable" not in self.startup else {}
        self.process.wait(timeout=30)
        return last

    def kill(self) -> None:
        """End the host process if it is still running, and remove the targets that it leaves."""
        self.process.kill()
        self.process.wait()
        if "folder" in self.startup:
            shutil.rmtree(self.startup["folder"], ignore_errors=True)


@contextmanager
def host_of(variant: Variant) -> Iterator[Host]:
    """Start the host process of a variant, and end it with the block."""
    host = Host({"isolation": variant.isolation, "refuse": list(variant.refuse)}, variant.ordinary_user)
    try:
        yield host
    finally:
        host.kill()
