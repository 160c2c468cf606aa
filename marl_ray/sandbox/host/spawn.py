"""How the zygote of each level is started: the command line, and the wall it is to build.

Every process behind the wall is started by exec with an environment of one constant variable and two
inherited descriptors, so nothing of the owner (API keys in its environment, its memory, its open files) is in
it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from marl_ray.sandbox.host.guest_packages import SINGLE_THREADED, find_packages
from marl_ray.sandbox.host.stdlib_copy import readable_by_all, readable_copy

LEVELS = ("none", "process", "process+landlock", "bwrap")
"""From the weakest to the strongest."""

NOBODY = 65534
_INSIDE = str(Path(__file__).resolve().parents[1] / "inside")
_BOOT = os.path.join(_INSIDE, "zygote", "boot.py")
_ENVIRONMENT = {"PYTHONHASHSEED": "0"}
"""A fixed seed, so that what a program makes of the order of a set is the same in every sandbox."""


@dataclass(frozen=True, slots=True)
class LaunchSpec:
    """A command to start and the configuration to send to the zygote it becomes."""

    level: str
    command: list[str]
    config: dict[str, Any]
    environment: dict[str, str]


@dataclass(slots=True)
class ZygoteProcess:
    """A started zygote. `errors` collects what it and bubblewrap write to standard error."""

    process: subprocess.Popen[bytes]
    errors: IO[bytes]

    def error_text(self) -> str:
        """The last line written to standard error."""
        self.errors.seek(0)
        lines = self.errors.read()[-4000:].decode("utf-8", "replace").strip().splitlines()
        return lines[-1].strip() if lines else ""


def interpreter() -> tuple[str, str]:
    """The real Python behind a virtual environment, and the folder that holds its library."""
    return os.path.realpath(sys.executable), os.path.realpath(sys.base_prefix)


def launch_spec(level: str, package_names: tuple[str, ...] = (), scratch_mb: int = 0) -> LaunchSpec:
    """The launch for a level, with these packages, and folders of so many MiB for guests. Raises OSError, with the
    reason, where something that the level needs is not installed, or the level has no such folders, and
    ModuleNotFoundError where a package is not."""
    if scratch_mb and level in ("none", "process"):
        raise OSError("a scratch folder (sandbox.scratch_mb) needs Landlock")
    python, prefix = interpreter()
    command = [python, "-s", "-S", "-P", "-B", _BOOT]
    packages = find_packages(package_names)
    environment = _ENVIRONMENT | (SINGLE_THREADED if package_names else {})
    root = os.geteuid() == 0
    # bubblewrap shows Python to everybody, and at the level "process" no file can be opened anyhow.
    if root and level == "process+landlock" and not readable_by_all(prefix):
        prefix = environment["PYTHONHOME"] = readable_copy(prefix) or prefix
    config: dict[str, Any] = {
        "landlock": {"bwrap": "required" if scratch_mb else "optional", "process+landlock": "required"}.get(
            level, "off"
        ),
        "level": level,
        "scratch_mb": scratch_mb,
        "seccomp": level != "none",
        "may_open": level != "process",
        "user": NOBODY if root and level != "none" else None,
        "readable": [*_readable_paths(prefix), *packages.paths],
        "packages": packages.names,
        "package_roots": packages.roots,
        "readable_by_all": level == "bwrap" or readable_by_all(prefix),
    }
    if level == "bwrap":
        program = shutil.which("bwrap")
        if program is None:
            raise FileNotFoundError("bubblewrap is not installed")
        command = [program, *_bubblewrap_options(prefix, packages.paths, root, scratch_mb > 0), *command]
    return LaunchSpec(level, command, config, environment)


def spawn(launch: LaunchSpec, owner_descriptor: int, lifeline: int) -> ZygoteProcess:
    """Start a zygote with two descriptors and nothing else. Raises OSError where it cannot be started at all."""
    errors = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
    try:
        process = subprocess.Popen(
            [*launch.command, str(owner_descriptor), str(lifeline)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            env=launch.environment,
            cwd="/",
            close_fds=True,
            pass_fds=(owner_descriptor, lifeline),
            start_new_session=True,
        )
    except OSError:
        errors.close()
        raise
    return ZygoteProcess(process, errors)


def _readable_paths(prefix: str) -> list[str]:
    """What a guest may read under Landlock: Python, the C library, time zones."""
    system = ["/usr/lib", "/usr/lib64", "/lib", "/lib64", "/usr/share/zoneinfo", "/etc/ld.so.cache"]
    return [prefix, _INSIDE, *system, "/dev/null", "/dev/urandom"]


def _bubblewrap_options(prefix: str, packages: Sequence[str], root: bool, scratch: bool) -> list[str]:
    """New namespaces, and a file system of /usr, Python, this package and `packages`, read-only.

    Not used: --die-with-parent (it would fire when the owner's starting *thread* ends; the lifeline does its
    work), --new-session (the owner kills by process group; there is no terminal), --proc and --disable-userns
    (refused in containers).
    """
    options = ["--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
    if root:
        options += ["--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    else:
        options += ["--unshare-user", "--uid", str(NOBODY), "--gid", str(NOBODY), "--cap-drop", "ALL"]
    if scratch:  # the zygote mounts it there, and gives the right up before there is a guest
        options += ["--cap-add", "CAP_SYS_ADMIN", "--perms", "0755", "--dir", "/scratch"]
    options += ["--perms", "0755", "--dir", "/dev"]
    for device in ("/dev/null", "/dev/urandom"):
        options += ["--dev-bind", device, device]
    made: set[str] = set()
    bound = ["/usr"]
    options += ["--ro-bind", "/usr", "/usr"]
    for path in (prefix, _INSIDE, *packages):
        if any(path == folder or path.startswith(folder + "/") for folder in bound):
            continue
        for parent in reversed(Path(path).parents):
            name = str(parent)
            if name != "/" and name not in made and not any(name.startswith(folder + "/") for folder in bound):
                options += ["--perms", "0755", "--dir", name]  # otherwise 0700: closed to the guest
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
