"""Folders that guests may write to: one a guest, on a file system of the sandbox's own, which is memory and bounded.

The zygote mounts it once, in a mount namespace that nobody else is in, while it still may; what it holds is gone with
the processes. Landlock shuts each guest up in its folder, where it lets it make files and folders, no links or devices.
Size and number of files are the mount's, for all guests of a program together.
"""

from __future__ import annotations

import ctypes
import errno
import os

from .landlock import WRITING_ABI, abi
from .process import libc

MAX_FILES = 256
"""Files and folders. A file costs the kernel memory that no size counts; and a guest's folders are this deep at most,
which `empty` relies on."""
GUESTS = 16
"""Folders that are made ahead: a program that uses all files up takes them from no other guest. A program has a few
guests at a time, and there are a spare one and the compiler's."""
PLACES = ("/scratch", "/mnt", "/media", "/srv")
"""Folders that may be there to be mounted on, and hold nothing that a guest could read anyway."""

_CLONE_NEWNS, _CLONE_NEWUSER = 0x00020000, 0x10000000
_NOSUID, _NODEV, _NOEXEC, _RECURSIVE, _PRIVATE = 2, 4, 8, 1 << 14, 1 << 18


class Scratch:
    """The mounted file system. Raises OSError, with the reason, where there can be none."""

    def __init__(self, megabytes: int, user: int | None, own_namespace: bool) -> None:
        """`user` is whom its folders belong to, None: the caller. `own_namespace`: the caller is in a mount namespace
        of its own already, with the right to mount; else it goes into one."""
        if abi() < WRITING_ABI:
            raise OSError("a scratch folder needs Landlock as of Linux 6.2 (sandbox.scratch_mb)")
        self.place = next((place for place in PLACES if os.path.isdir(place)), "")
        if not self.place:
            raise OSError(f"a scratch folder needs one of {', '.join(PLACES)} to be mounted on")
        owner = os.getuid() if user is None else user
        group = os.getgid() if user is None else user
        if not own_namespace:
            _leave()
        options = f"size={megabytes}m,nr_inodes={MAX_FILES},mode=0700,uid={owner},gid={group}"
        _mount("tmpfs", self.place, "tmpfs", _NOSUID | _NODEV | _NOEXEC, options)
        self._free = [f"{self.place}/{number}" for number in range(GUESTS)]

    def make_folders(self) -> None:
        """Once, by the user that they belong to."""
        for path in self._free:
            os.mkdir(path, 0o700)

    def take(self) -> str:
        """A folder that is empty. Raises OSError where too many guests are alive."""
        if not self._free:
            raise OSError(errno.EAGAIN, "all scratch folders are taken")
        return self._free.pop()

    def give_back(self, path: str) -> None:
        """A folder whose guest is no more, whatever it has left there."""
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            empty(descriptor)
        finally:
            os.close(descriptor)
        self._free.append(path)


def empty(folder: int) -> None:
    """Remove all that is in an open folder. Never by a path, which a guest can make longer than the kernel takes."""
    with os.scandir(folder) as entries:
        found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    for name, is_folder in found:
        if not is_folder:
            os.unlink(name, dir_fd=folder)
            continue
        os.chmod(name, 0o700, dir_fd=folder)  # it may have been made closed
        below = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
        try:
            empty(below)
        finally:
            os.close(below)
        os.rmdir(name, dir_fd=folder)


def _leave() -> None:
    """Go into a new mount namespace, with a new user namespace where the caller has not the right to do it alone."""
    user, group = os.getuid(), os.getgid()
    if libc.unshare(_CLONE_NEWNS) != 0:
        _check(libc.unshare(_CLONE_NEWNS | _CLONE_NEWUSER), "a scratch folder needs a mount namespace")
        for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
    _mount(None, "/", None, _RECURSIVE | _PRIVATE, None)


def _mount(source: str | None, place: str, kind: str | None, flags: int, options: str | None) -> None:
    source_, place_, kind_, options_ = (
        None if text is None else text.encode() for text in (source, place, kind, options)
    )
    result = libc.mount(source_, place_, kind_, ctypes.c_ulong(flags), options_)
    _check(result, f"a scratch folder needs a file system of its own: mount on {place}")


def _check(result: int, what: str) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
