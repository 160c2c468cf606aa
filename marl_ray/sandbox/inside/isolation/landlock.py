"""Landlock: a process gives up every right to the file system but reading a few paths.

Depending on the kernel's ABI it also gives up TCP (4), and signals and abstract sockets to processes outside
(6); a process under Landlock can ptrace nothing outside of it either, which guards `/proc/PID/environ`.
See landlock(7) and `Documentation/userspace-api/landlock.rst`.
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
"""No special files, no symbolic links, nothing that can be executed."""
WRITING_ABI = 3
"""The first one that rules on truncation: before, whoever may open a file for reading may empty it."""
_FS_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
"""How many file system rights each ABI knows, the lowest bits of the mask."""


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
    """The kernel's Landlock ABI; 0 where there is none (too old, compiled out, or filtered)."""
    if not syscalls.supported() or libc is None:
        return 0
    try:
        return _call("landlock_create_ruleset", None, ctypes.c_size_t(0), ctypes.c_uint32(_CREATE_VERSION))
    except OSError:
        return 0


def make_ruleset(readable: Iterable[str], writable: str | None = None) -> int:
    """A ruleset under which only these files and folders can be read, and nothing but the folder `writable` be written
    to, if there is one: its descriptor.

    Paths that do not exist are left out. Raises OSError where the kernel has no Landlock.
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
    """Put the calling process under a ruleset, for good; it must have `no_new_privs` set."""
    _call("landlock_restrict_self", ctypes.c_int(ruleset), ctypes.c_uint32(0))
