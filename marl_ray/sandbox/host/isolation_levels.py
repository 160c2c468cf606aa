"""Isolation levels: settings that choose a level, and the command line and configuration of its zygote."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from marl_ray.sandbox.host.python_files import (
    SINGLE_THREADED,
    essential_files,
    find_packages,
    readable_by_all,
    readable_copy,
)
from marl_ray.sandbox.inside.protocol.messages import Limits

LEVELS = ("none", "process", "process+landlock", "bwrap")
"""Isolation levels, weakest first."""
MAX_SCRATCH_MB = 1024
"""Scratch folders are memory of the machine, in addition to a program's own memory limit."""
NOBODY = 65534
"""User and group of guests where the sandbox is started as root."""
_INSIDE = str(Path(__file__).resolve().parents[1] / "inside")
_BOOT = os.path.join(_INSIDE, "zygote", "boot.py")
_SYSTEM = ("/usr/lib", "/usr/lib64", "/lib", "/lib64", "/usr/share/zoneinfo", "/etc/ld.so.cache")
_DEVICES = ("/dev/null", "/dev/urandom")
_ENVIRONMENT = {"PYTHONHASHSEED": "0"}
"""The environment of isolated processes; the fixed seed makes the order of sets equal in every sandbox."""


class SandboxUnavailable(Exception):
    """No acceptable isolation level is available on this machine; the message gives the reasons in one line."""


@dataclass(frozen=True, slots=True)
class SandboxSettings:
    """Settings of a sandbox. Raises ValueError for an unknown level, a size out of range or a malformed name."""

    isolation: Literal["auto", "bwrap", "process", "none"] = "auto"
    """`auto`: the strongest level that passes its self-test. `process`: with Landlock where the kernel has Landlock."""
    require: str | None = None
    """Minimum level (see `LEVELS`); a sandbox that cannot reach this level does not start."""
    allow_unsafe: bool = False
    """Permit level `none`, also as the last resort of `auto`."""
    limits: Limits = field(default_factory=Limits)
    """Limits of programs that bring none of their own."""
    packages: tuple[str, ...] = ()
    """Import names of installed packages that programs may use. The zygote preloads them; guests can only read them."""
    scratch_mb: int = 0
    """MiB of files that a program may write to its own working directory. Needs Landlock of Linux 6.2 or newer."""

    def __post_init__(self) -> None:
        if self.isolation not in ("auto", "bwrap", "process", "none"):
            raise ValueError(f"sandbox.isolation: unknown value {self.isolation!r}")
        if self.require is not None and self.require not in LEVELS:
            raise ValueError(f"sandbox.require: unknown level {self.require!r}; known are {', '.join(LEVELS)}")
        if isinstance(self.scratch_mb, bool) or not 0 <= self.scratch_mb <= MAX_SCRATCH_MB:
            raise ValueError(f"sandbox.scratch_mb: {self.scratch_mb} is not between 0 and {MAX_SCRATCH_MB}")
        for name in self.packages:
            if not name.isidentifier():
                raise ValueError(f"sandbox.packages: {name!r} is not an import name")

    def candidates(self) -> list[str]:
        """Return the levels to try, strongest first. Raises SandboxUnavailable for contradictory settings."""
        if self.isolation == "none" and not self.allow_unsafe:
            raise SandboxUnavailable("isolation 'none' runs programs unprotected: it needs allow_unsafe: true")
        named = {"auto": LEVELS, "bwrap": ["bwrap"], "process": ["process", "process+landlock"], "none": ["none"]}
        strong_enough = LEVELS[LEVELS.index(self.require or "none") :]
        levels = [level for level in reversed(strong_enough) if level in named[self.isolation]]
        if not self.allow_unsafe and "none" in levels:
            levels.remove("none")
        if not levels:
            raise SandboxUnavailable(f"isolation '{self.isolation}' cannot reach the required '{self.require}'")
        return levels


@dataclass(frozen=True, slots=True)
class LaunchSpec:
    """A command to start, and the configuration to send to the zygote that it becomes."""

    level: str
    command: list[str]
    config: dict[str, Any]
    environment: dict[str, str]


def interpreter() -> tuple[str, str]:
    """Return the real Python behind a virtual environment, and the prefix that holds its library."""
    return os.path.realpath(sys.executable), os.path.realpath(sys.base_prefix)


def launch_spec(level: str, package_names: tuple[str, ...] = (), scratch_mb: int = 0) -> LaunchSpec:
    """Return how to start the zygote at a level, with these packages and scratch folders of `scratch_mb` MiB.

    Raises OSError, with the reason, if the level needs something that is not installed or has no scratch folders, and
    ModuleNotFoundError for a package that is not installed.
    """
    if scratch_mb and level in ("none", "process"):
        raise OSError("a scratch folder (sandbox.scratch_mb) needs Landlock")
    python, prefix = interpreter()
    command = [python, "-s", "-S", "-P", "-B", _BOOT]
    roots, packages = find_packages(package_names)
    environment = dict(_ENVIRONMENT)
    if package_names:
        environment |= SINGLE_THREADED
    root = os.geteuid() == 0
    # bubblewrap exposes Python to every user, and at level "process" no file can be opened anyway.
    if root and level == "process+landlock" and not readable_by_all(prefix):
        prefix = environment["PYTHONHOME"] = readable_copy(prefix) or prefix
    landlock = {"bwrap": "required" if scratch_mb else "optional", "process+landlock": "required"}
    config: dict[str, Any] = {
        "landlock": landlock.get(level, "off"),
        "level": level,
        "scratch_mb": scratch_mb,
        "seccomp": level != "none",
        "may_open": level != "process",
        "user": NOBODY if root and level != "none" else None,
        "readable": [prefix, _INSIDE, *_SYSTEM, *_DEVICES, *packages],
        "readable_on_shared_mounts": [],
        "packages": package_names,
        "package_roots": roots,
        "readable_by_all": level == "bwrap" or readable_by_all(prefix),
    }
    if level == "process+landlock":  # the zygote reads all of these at its start (see `inside.isolation.access_times`)
        config["readable_on_shared_mounts"] = [*essential_files(prefix), _INSIDE, _SYSTEM[-1], *_DEVICES, *packages]
    if level == "bwrap":
        program = shutil.which("bwrap")
        if program is None:
            raise FileNotFoundError("bubblewrap is not installed")
        command = [program, *_bubblewrap_options(prefix, packages, root, scratch_mb > 0), *command]
    return LaunchSpec(level, command, config, environment)


def _bubblewrap_options(prefix: str, packages: Sequence[str], root: bool, scratch: bool) -> list[str]:
    """Return options for new namespaces and a read-only file system of /usr, Python, this package and `packages`.

    Deliberately not used: --die-with-parent (fires when the *thread* that started the child ends; the lifeline replaces
    it), --new-session (the host process kills by process group; there is no terminal), --proc and --disable-userns
    (refused in containers).
    """
    options = ["--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
    if root:
        options += ["--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    else:
        options += ["--unshare-user", "--uid", str(NOBODY), "--gid", str(NOBODY), "--cap-drop", "ALL"]
    if scratch:  # the zygote mounts the tmpfs there, and drops the capability before there is a guest
        options += ["--cap-add", "CAP_SYS_ADMIN", "--perms", "0755", "--dir", "/scratch"]
    options += ["--perms", "0755", "--dir", "/dev"]
    for device in _DEVICES:
        options += ["--dev-bind", device, device]
    made: set[str] = set()
    bound = ["/usr"]
    options += ["--ro-bind", "/usr", "/usr"]
    for path in (prefix, _INSIDE, *packages):
        inside = tuple(f"{folder}/" for folder in bound)
        if path in bound or path.startswith(inside):
            continue
        for name in map(str, reversed(Path(path).parents)):
            if name != "/" and name not in made and not name.startswith(inside):
                options += ["--perms", "0755", "--dir", name]  # the default 0700 would be closed to the guest
                made.add(name)
        options += ["--ro-bind", path, path]
        bound.append(path)
    for link in ("/lib", "/lib64", "/bin"):
        if os.path.islink(link):
            options += ["--symlink", os.readlink(link), link]
        elif os.path.isdir(link):
            options += ["--ro-bind", link, link]
    options += ["--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache"]
    return [*options, "--remount-ro", "/", "--chdir", "/"]
