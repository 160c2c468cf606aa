"""Scratch folders: one writable folder per guest on a tmpfs of the sandbox.

The zygote mounts the tmpfs once, in a mount namespace of its own, before it drops its rights; the contents end with the
processes. Landlock restricts each guest to its folder, where the guest may create files and folders but no links or
devices. Size and number of files are bounded by the mount, for all guests of a program together.
"""

from __future__ import annotations

import ctypes
import errno
import os

from .landlock import WRITING_ABI, abi
from .process import libc

MAX_FILES = 256
"""Maximum number of files and folders: inodes cost kernel memory that `size` does not count. It also bounds the depth of a
guest's folders, on which the recursion of `empty` relies."""
FOLDERS = 16
"""Number of folders made in advance, so a program that uses up all inodes takes none from other guests. A program has a few
guests at a time; the spare guest and the compiling guest have one each."""
MOUNT_POINTS = ("/scratch", "/mnt", "/media", "/srv")
"""Folders to mount on if they exist; they hold nothing that a guest could read anyway."""

_CLONE_NEWNS, _CLONE_NEWUSER = 0x00020000, 0x10000000
_NOSUID, _NODEV, _NOEXEC, _RECURSIVE, _PRIVATE = 2, 4, 8, 1 << 14, 1 << 18


class Scratch:
    """The mounted tmpfs and its folders. Raises OSError with the reason if it cannot be mounted."""

    def __init__(self, megabytes: int, user: int | None, own_namespace: bool) -> None:
        """Mount the tmpfs. `user` owns the folders; None: the caller. `own_namespace`: the caller already has a mount
        namespace of its own and may mount there; otherwise it enters a new one."""
        if abi() < WRITING_ABI:
            raise OSError("a scratch folder needs Landlock as of Linux 6.2 (sandbox.scratch_mb)")
        mount_point = next((path for path in MOUNT_POINTS if os.path.isdir(path)), "")
        if not mount_point:
            raise OSError(f"a scratch folder needs one of {', '.join(MOUNT_POINTS)} to be mounted on")
        owner = os.getuid() if user is None else user
        group = os.getgid() if user is None else user
        if not own_namespace:
            _enter_namespace()
        options = f"size={megabytes}m,nr_inodes={MAX_FILES},mode=0700,uid={owner},gid={group}"
        _mount("tmpfs", mount_point, "tmpfs", _NOSUID | _NODEV | _NOEXEC, options)
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
        """Empty and reuse the folder of a guest that has ended."""
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            empty(descriptor)
        finally:
            os.close(descriptor)
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


def _enter_namespace() -> None:
    """Enter a new mount namespace, within a new user namespace if the caller lacks the right to create one."""
    user, group = os.getuid(), os.getgid()
    if libc.unshare(_CLONE_NEWNS) != 0:
        _check(libc.unshare(_CLONE_NEWNS | _CLONE_NEWUSER), "a scratch folder needs a mount namespace")
        for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
    _mount(None, "/", None, _RECURSIVE | _PRIVATE, None)


def _mount(source: str | None, target: str, kind: str | None, flags: int, options: str | None) -> None:
    source_, target_, kind_, options_ = (
        None if text is None else text.encode() for text in (source, target, kind, options)
    )
    result = libc.mount(source_, target_, kind_, ctypes.c_ulong(flags), options_)
    _check(result, f"a scratch folder needs a file system of its own: mount on {target}")


def _check(result: int, message: str) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{message}: {os.strerror(code)}")
