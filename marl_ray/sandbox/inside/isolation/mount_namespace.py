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

CLONE_NEWNS = 0x00020000
CLONE_NEWUSER = 0x10000000
READ_ONLY = 1
NOSUID = 2
NODEV = 4
NOEXEC = 8
PRIVATE = 1 << 18
_AT_FDCWD = -100
_AT_RECURSIVE = 0x8000


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
    # Read before `unshare`: a new user namespace has no names for them yet.
    user = os.getuid()
    group = os.getgid()
    if libc.unshare(CLONE_NEWNS) != 0:
        check(libc.unshare(CLONE_NEWNS | CLONE_NEWUSER * own_user), "no mount namespace can be created")
        map_user(user, group)
    set_attributes("/", READ_ONLY, PRIVATE)
    mount_tmpfs("/proc", READ_ONLY | NOSUID | NODEV | NOEXEC, "mode=0555,nr_inodes=1")


def map_user(user: int, group: int) -> None:
    """Map one user and group to themselves in the user namespace that this process has entered. Raises OSError."""
    # An ordinary user may map a group only after giving up setgroups(2): user_namespaces(7).
    for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        with open(f"/proc/self/{name}", "w", encoding="utf-8") as file:
            file.write(text)


def set_attributes(path: str, flags: int, propagation: int, recursive: bool = True) -> None:
    """Add flags to a mount, by default with all mounts below. Raises OSError."""
    attributes = ctypes.create_string_buffer(struct.pack("=QQQQ", flags, 0, propagation, 0), 32)  # struct mount_attr
    scope = ctypes.c_uint(_AT_RECURSIVE * recursive)
    system_call("mount_setattr", ctypes.c_int(_AT_FDCWD), path.encode(), scope, attributes, ctypes.c_size_t(32))


def mount_tmpfs(folder: str, flags: int, options: str) -> None:
    """Mount an empty file system of this process's memory on a folder. Raises OSError."""
    result = libc.mount(b"tmpfs", folder.encode(), b"tmpfs", ctypes.c_ulong(flags), options.encode())
    check(result, f"no file system can be mounted on {folder}")


def owned_by(user: int | None) -> str:
    """Return the options of a file system whose folder only `user` (None: the caller) may enter."""
    if user is None:
        return f"mode=0700,uid={os.getuid()},gid={os.getgid()}"
    return f"mode=0700,uid={user},gid={user}"
