"""Namespaces of a command: a root folder with the named files only, a network that is empty but for one port, and
processes that end together.

See namespaces(7), pivot_root(2) and mount_setattr(2). A network namespace has no device but the loopback device. A
socket belongs to the namespace in which it was created: the launcher, outside, accepts the connections of a socket that
listens inside (`listen`), and passes them on.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
from collections.abc import Sequence

from . import mount_namespace, process
from .process import check, libc, system_call

_CLONE_NEWUTS = 0x04000000
_CLONE_NEWIPC = 0x08000000
_CLONE_NEWPID = 0x20000000
_CLONE_NEWNET = 0x40000000
_BIND = 4096
_RECURSIVE = 16384
_DETACH = 2
# SIOCGIFFLAGS, SIOCSIFFLAGS and IFF_UP of netdevice(7).
_GET_FLAGS = 0x8913
_SET_FLAGS = 0x8914
_IS_UP = 1
_PR_SET_DUMPABLE = 4
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc/ld.so.cache", "/etc/alternatives", "/etc/localtime")
"""Paths that every command may read, as far as they exist."""
DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")
MAX_FILES = 65536
BACKLOG = 128


def own_user() -> None:
    """Enter a user namespace with this user only, in which the process may create other namespaces. Raises OSError."""
    user = os.getuid()
    group = os.getgid()
    libc.prctl(_PR_SET_DUMPABLE, 1)  # else a process that has changed its user may not write the maps
    check(libc.unshare(mount_namespace.CLONE_NEWUSER), "no user namespace can be created")
    mount_namespace.map_user(user, group)


def own_processes() -> None:
    """Let the next child of this process be the first of a new process namespace. Raises OSError."""
    check(libc.unshare(_CLONE_NEWPID), "no process namespace can be created")


def listen(port: int) -> socket.socket:
    """Enter an empty network namespace, and return a socket that listens there on 127.0.0.1. Raises OSError."""
    check(libc.unshare(_CLONE_NEWNET | _CLONE_NEWIPC | _CLONE_NEWUTS), "no network namespace can be created")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as device:
        request = struct.pack("16sh14x", b"lo", 0)
        (flags,) = struct.unpack_from("16xh", fcntl.ioctl(device, _GET_FLAGS, request))
        fcntl.ioctl(device, _SET_FLAGS, struct.pack("16sh14x", b"lo", flags | _IS_UP))
    listening = socket.socket()
    listening.bind(("127.0.0.1", port))
    listening.listen(BACKLOG)
    return listening


def enter(folder: str, files: Sequence[str], readable: Sequence[str], megabytes: int, user: int | None) -> None:
    """Enter a root that has the paths `readable`, read-only, and an empty `folder` of `megabytes` MiB for `user` (None:
    the caller).

    `files` are names of files in `folder` that are the original ones: the last may be written, the others read. Raises
    OSError. Call it in a new process namespace, whose /proc is mounted.
    """
    check(libc.unshare(mount_namespace.CLONE_NEWNS), "no mount namespace can be created")
    mount_namespace.set_attributes("/", 0, mount_namespace.PRIVATE)
    originals = [os.open(os.path.join(folder, name), os.O_PATH) for name in files]
    mount_namespace.mount_tmpfs(folder, mount_namespace.NOSUID, "mode=0755")
    shown = sorted(filter(os.path.exists, (*readable, *SYSTEM)), key=os.path.realpath)  # folders before their files
    for path in shown:
        _show(folder, os.path.realpath(path))
    for path in shown:
        _link(folder, path)
    for path in DEVICES:
        _bind(path, _made(folder + path, is_folder=False))
    os.symlink("/proc/self/fd", folder + "/dev/fd")
    os.symlink(folder, folder + "/dev/shm")
    _mount_processes(_made(folder + "/proc", is_folder=True))
    os.makedirs(folder + os.getcwd(), exist_ok=True)
    own = _made(folder + folder, is_folder=True)
    options = f"size={megabytes}m,nr_inodes={MAX_FILES},{mount_namespace.owned_by(user)}"
    mount_namespace.mount_tmpfs(own, mount_namespace.NOSUID | mount_namespace.NODEV, options)
    for place, (name, original) in enumerate(zip(files, originals, strict=True)):
        target = _made(os.path.join(own, name), is_folder=False)
        _bind(f"/proc/self/fd/{original}", target)
        is_last = place == len(files) - 1
        mount_namespace.set_attributes(target, 0 if is_last else mount_namespace.READ_ONLY, 0)
        os.close(original)
    mount_namespace.set_attributes(folder, mount_namespace.READ_ONLY, 0, recursive=False)
    # With "." twice, the old root lies on top of the new one, from where it can be unmounted: pivot_root(2).
    working = os.getcwd()
    os.chdir(folder)
    system_call("pivot_root", b".", b".")
    check(libc.umount2(b".", _DETACH), "the old root cannot be left")
    os.chdir(working)


def drop_user(user: int) -> None:
    """Change to an ordinary user, in a user namespace of its own: the limit of processes then counts the command's own
    processes and not all of the user. Raises OSError."""
    process.drop_user(user)
    own_user()


def _show(root: str, path: str) -> None:
    """Make a path without links readable below `root`."""
    if not os.path.lexists(root + path):
        target = _made(root + path, is_folder=os.path.isdir(path))
        _bind(path, target)
        flags = mount_namespace.READ_ONLY | mount_namespace.NOSUID | mount_namespace.NODEV
        mount_namespace.set_attributes(target, flags, 0)


def _link(root: str, path: str) -> None:
    """Let a path with links lead to its target below `root`."""
    if not os.path.lexists(root + path):
        os.makedirs(os.path.dirname(root + path), exist_ok=True)
        os.symlink(os.path.realpath(path), root + path)


def _made(path: str, is_folder: bool) -> str:
    """Create a mount point with its parents, and return its path."""
    os.makedirs(path if is_folder else os.path.dirname(path), exist_ok=True)
    if not is_folder and not os.path.exists(path):
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o644))
    return path


def _bind(source: str, target: str) -> None:
    result = libc.mount(source.encode(), target.encode(), None, ctypes.c_ulong(_BIND | _RECURSIVE), None)
    check(result, f"{source} cannot be shown to the command")


def _mount_processes(target: str) -> None:
    flags = mount_namespace.NOSUID | mount_namespace.NODEV | mount_namespace.NOEXEC
    check(libc.mount(b"proc", target.encode(), b"proc", ctypes.c_ulong(flags), None), "/proc cannot be mounted")
