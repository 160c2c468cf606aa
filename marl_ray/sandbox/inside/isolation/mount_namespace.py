"""A mount namespace of the zygote, in which every mount is read-only and /proc is empty.

Reading a file changes its access time, and following a symbolic link changes the link's: a bit that one program can
leave for the next. The kernel updates no access time on a read-only mount. An empty /proc hides process numbers. See
mount_namespaces(7) and mount_setattr(2).
"""

from __future__ import annotations

import ctypes
import os
import struct

from .process import check, fork, libc, system_call

_CLONE_NEWNS, _CLONE_NEWUSER = 0x00020000, 0x10000000
_READ_ONLY, NOSUID, NODEV, NOEXEC, PRIVATE = 1, 2, 4, 8, 1 << 18
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000


def available(own_user: bool) -> bool:
    """Return whether `enter` works on this kernel and in this container; tried in a child process."""
    child = fork()
    if child == 0:
        try:
            enter(own_user)
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitpid(child, 0)[1] == 0


def enter(own_user: bool) -> None:
    """Enter the namespace. Raises OSError.

    `own_user`: enter a user namespace of this user first if this process may not create a mount namespace otherwise. A
    process that changes its user afterwards cannot: the new user would not exist in that namespace.
    """
    user, group = os.getuid(), os.getgid()
    if libc.unshare(_CLONE_NEWNS) != 0:
        check(libc.unshare(_CLONE_NEWNS | _CLONE_NEWUSER * own_user), "no mount namespace can be created")
        for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            with open(f"/proc/self/{name}", "w", encoding="utf-8") as file:
                file.write(text)
    attributes = ctypes.create_string_buffer(struct.pack("=QQQQ", _READ_ONLY, 0, PRIVATE, 0), 32)  # struct mount_attr
    folder, flags, size = ctypes.c_int(_AT_FDCWD), ctypes.c_uint(_AT_RECURSIVE), ctypes.c_size_t(32)
    system_call("mount_setattr", folder, b"/", flags, attributes, size)
    mount_tmpfs("/proc", _READ_ONLY | NOSUID | NODEV | NOEXEC, "mode=0555,nr_inodes=1")


def mount_tmpfs(folder: str, flags: int, options: str) -> None:
    """Mount an empty file system of this process's memory on a folder. Raises OSError."""
    result = libc.mount(b"tmpfs", folder.encode(), b"tmpfs", ctypes.c_ulong(flags), options.encode())
    check(result, f"no file system can be mounted on {folder}")
