"""File access of guests and judge: Landlock rules, and scratch folders that guests may write to.

Landlock also stops TCP (ABI 4), signals and abstract sockets to processes outside (ABI 6), and ptrace of processes
outside, which protects `/proc/PID/environ`. See landlock(7) and `Documentation/userspace-api/landlock.rst`.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Iterable

from .mount_namespace import NODEV, NOEXEC, NOSUID, mount_tmpfs, owned_by
from .process import system_call

_CREATE_VERSION = 1
_RULE_PATH_BENEATH = 1
# LANDLOCK_ACCESS_FS_...
_WRITE_FILE = 1 << 1
_READ_FILE = 1 << 2
_READ_DIR = 1 << 3
_REMOVE_DIR = 1 << 4
_REMOVE_FILE = 1 << 5
_MAKE_DIR = 1 << 7
_MAKE_REG = 1 << 8
_REFER = 1 << 13
_TRUNCATE = 1 << 14
_READ = _READ_FILE | _READ_DIR
_WRITE = _WRITE_FILE | _REMOVE_DIR | _REMOVE_FILE | _MAKE_DIR | _MAKE_REG | _REFER | _TRUNCATE
"""Excludes special files, symbolic links and execution."""
WRITING_ABI = 3
"""First ABI that controls truncation: before it, a process that may read a file may empty the file."""
_FS_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
"""Number of file system rights per ABI: the lowest bits of the mask."""

MAX_FILES = 256
"""Maximum number of files and folders: inodes cost kernel memory that `size` does not count. It also bounds the depth
of a guest's folders, on which the recursion of `empty` relies."""
FOLDERS = 16
"""Number of folders made in advance, so a program that uses up all inodes takes none from other guests. A program has a
few guests at a time; the spare guest and the compiling guest have one each."""
MOUNT_POINTS = ("/scratch", "/mnt", "/media", "/srv")
"""Folders to mount on if they exist; they hold nothing that a guest could read anyway."""


def landlock_abi() -> int:
    """Return the kernel's Landlock ABI; 0 without Landlock (too old, compiled out, or filtered)."""
    try:
        return system_call("landlock_create_ruleset", None, ctypes.c_size_t(0), ctypes.c_uint32(_CREATE_VERSION))
    except OSError:
        return 0


def make_ruleset(readable: Iterable[str], writable: str | None = None) -> int:
    """Return the descriptor of a ruleset that permits reading `readable` and writing to the folder `writable` only.

    Paths that do not exist are skipped. Raises OSError without Landlock.
    """
    version = landlock_abi()
    if not version:
        raise OSError(errno.ENOSYS, "this kernel offers no Landlock")
    rights = (1 << _FS_RIGHTS.get(version, 16)) - 1
    # Deny all that the kernel knows: TCP (bind, connect), and what lies outside (abstract sockets, signals). It refuses
    # a structure with parts that it does not know.
    network = 0
    scopes = 0
    size = 8
    if version >= 4:
        network = 0b11
        size = 16
    if version >= 6:
        scopes = 0b11
        size = 24
    attributes = ctypes.create_string_buffer(struct.pack("=QQQ", rights, network, scopes), 24)
    ruleset = system_call("landlock_create_ruleset", attributes, ctypes.c_size_t(size), ctypes.c_uint32(0))
    try:
        for path in readable:
            _allow(ruleset, path, _READ if os.path.isdir(path) else _READ_FILE)
        if writable is not None:
            _allow(ruleset, writable, _READ | _WRITE)
    except OSError:
        os.close(ruleset)
        raise
    return ruleset


def _allow(ruleset: int, path: str, rights: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        rule = ctypes.create_string_buffer(struct.pack("=Qi", rights, descriptor))  # struct landlock_path_beneath_attr
        kind = ctypes.c_int(_RULE_PATH_BENEATH)
        system_call("landlock_add_rule", ctypes.c_int(ruleset), kind, rule, ctypes.c_uint32(0))
    finally:
        os.close(descriptor)


def enforce(ruleset: int) -> None:
    """Put the calling process under a ruleset permanently; `no_new_privs` must be set."""
    system_call("landlock_restrict_self", ctypes.c_int(ruleset), ctypes.c_uint32(0))


class Scratch:
    """Scratch folders: one writable folder per guest on a tmpfs of the sandbox.

    The zygote mounts the tmpfs once, in its own mount namespace, before it drops its rights; the contents end with the
    processes. The mount bounds size and number of files, for all guests of a program together.
    """

    def __init__(self, megabytes: int, user: int | None) -> None:
        """Mount the tmpfs with folders for `user` (None: the caller). Raises OSError with the reason if this fails."""
        if landlock_abi() < WRITING_ABI:
            raise OSError("a scratch folder needs Landlock as of Linux 6.2 (sandbox.scratch_mb)")
        mount_point = next(filter(os.path.isdir, MOUNT_POINTS), "")
        if not mount_point:
            raise OSError(f"a scratch folder needs one of {', '.join(MOUNT_POINTS)} to be mounted on")
        options = f"size={megabytes}m,nr_inodes={MAX_FILES},{owned_by(user)}"
        mount_tmpfs(mount_point, NOSUID | NODEV | NOEXEC, options)
        self._free = [f"{mount_point}/{number}" for number in range(FOLDERS)]

    def make_folders(self) -> None:
        """Create the folders; called once, as the user who owns them."""
        for path in self._free:
            os.mkdir(path, 0o700)

    def take(self) -> str:
        """Return an empty folder. Raises OSError if too many guests are alive."""
        if not self._free:
            raise OSError(errno.EAGAIN, "all scratch folders are taken")
        return self._free.pop()

    def give_back(self, path: str) -> None:
        """Empty the folder of a guest that has ended, and replace it: its times may carry bits to the next guest."""
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            empty(descriptor)
        finally:
            os.close(descriptor)
        os.rmdir(path)
        os.mkdir(path, 0o700)
        self._free.append(path)


def empty(folder: int) -> None:
    """Remove the contents of an open folder by descriptors: a guest can make paths longer than the kernel accepts."""
    with os.scandir(folder) as entries:
        contents = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    for name, is_folder in contents:
        if not is_folder:
            os.unlink(name, dir_fd=folder)
            continue
        os.chmod(name, 0o700, dir_fd=folder)  # the guest may have made it inaccessible
        below = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
        try:
            empty(below)
        finally:
            os.close(below)
        os.rmdir(name, dir_fd=folder)
