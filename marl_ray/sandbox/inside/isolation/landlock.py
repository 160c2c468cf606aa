"""Landlock rules: a process gives up all access to the file system except reading a few paths.

Depending on the kernel's Landlock ABI, the process also gives up TCP (ABI 4), and signals and abstract sockets to
processes outside (ABI 6). A process under Landlock cannot ptrace processes outside either, which protects
`/proc/PID/environ`. See landlock(7) and `Documentation/userspace-api/landlock.rst`.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Iterable

from . import syscalls
from .process import libc

_CREATE_VERSION = 1
_RULE_PATH_BENEATH = 1
_WRITE_FILE, _READ_FILE, _READ_DIR, _REMOVE_DIR, _REMOVE_FILE = 1 << 1, 1 << 2, 1 << 3, 1 << 4, 1 << 5
_MAKE_DIR, _MAKE_REG, _REFER, _TRUNCATE = 1 << 7, 1 << 8, 1 << 13, 1 << 14
_READ = _READ_FILE | _READ_DIR
_WRITE = _WRITE_FILE | _REMOVE_DIR | _REMOVE_FILE | _MAKE_DIR | _MAKE_REG | _REFER | _TRUNCATE
"""Excludes special files, symbolic links and execution."""
WRITING_ABI = 3
"""First ABI that controls truncation: before it, a process that may read a file may empty the file."""
_FS_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
"""Number of file system rights per ABI: the lowest bits of the mask."""


class _PathBeneath(ctypes.Structure):
    """`struct landlock_path_beneath_attr`."""

    _pack_ = 1
    _fields_ = [("allowed_access", ctypes.c_uint64), ("parent_fd", ctypes.c_int32)]


def _call(name: str, *arguments: object) -> int:
    number = syscalls.number(name)
    result = int(libc.syscall(ctypes.c_long(number or 0), *arguments))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")
    return result


def abi() -> int:
    """Return the kernel's Landlock ABI; 0 without Landlock (too old, compiled out, or filtered)."""
    if not syscalls.supported() or libc is None:
        return 0
    try:
        return _call("landlock_create_ruleset", None, ctypes.c_size_t(0), ctypes.c_uint32(_CREATE_VERSION))
    except OSError:
        return 0


def make_ruleset(readable: Iterable[str], writable: str | None = None) -> int:
    """Return the descriptor of a ruleset that permits reading `readable` and writing to the folder `writable` only.

    Paths that do not exist are skipped. Raises OSError without Landlock.
    """
    version = abi()
    if not version:
        raise OSError(errno.ENOSYS, "this kernel offers no Landlock")
    rights = (1 << _FS_RIGHTS.get(version, 16)) - 1
    network = 0b11 if version >= 4 else 0
    scopes = 0b11 if version >= 6 else 0
    size = 8 if version < 4 else 16 if version < 6 else 24
    attributes = ctypes.create_string_buffer(struct.pack("=QQQ", rights, network, scopes), 24)
    ruleset = _call("landlock_create_ruleset", attributes, ctypes.c_size_t(size), ctypes.c_uint32(0))
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
        rule = _PathBeneath(rights, descriptor)
        _call(
            "landlock_add_rule",
            ctypes.c_int(ruleset),
            ctypes.c_int(_RULE_PATH_BENEATH),
            ctypes.byref(rule),
            ctypes.c_uint32(0),
        )
    finally:
        os.close(descriptor)


def enforce(ruleset: int) -> None:
    """Put the calling process under a ruleset permanently; `no_new_privs` must be set."""
    _call("landlock_restrict_self", ctypes.c_int(ruleset), ctypes.c_uint32(0))
