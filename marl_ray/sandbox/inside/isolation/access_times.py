"""Access times of readable files where mounts cannot be made read-only (see `mount_namespace`).

Linux updates the access time of a file that is read only if that time is older than the last change or than a day
(`relatime`). Such a file is *due*: a program that reads it leaves a bit for the next. The zygote reads every due file
before it forks a guest, and a separate process reads each other file in the second in which the file becomes due.
"""

from __future__ import annotations

import contextlib
import heapq
import os
import select
import stat
import time
from collections.abc import Iterable, Iterator

DAY_S = 24 * 60 * 60
_CLOCK_STEP_S = 0.02
"""Seconds by which the kernel's clock for access times may lag behind."""


def read_due_files(roots: Iterable[str]) -> list[tuple[float, str]]:
    """Read all due files and folders below these paths; return the others with the second when each becomes due."""
    later = []
    for root in set(map(os.path.realpath, roots)):
        for path in _files(root):
            if at := _read(path):
                later.append((at, path))
    heapq.heapify(later)
    return later


def keep_reading(later: list[tuple[float, str]], end: int) -> None:
    """Read each file when it becomes due, until the descriptor `end` is readable or no file can become due."""
    while later:
        if select.select([end], [], [], max(0.0, later[0][0] - time.time()))[0]:
            return
        _, path = heapq.heappop(later)
        if at := _read(path):
            heapq.heappush(later, (at, path))


def _read(path: str) -> float:
    """Read a file or folder if it is due. Return when it becomes due; 0 if its access time does not change."""
    with contextlib.suppress(OSError):
        before = os.stat(path)
        if at := _due_at(before):
            return at
        if stat.S_ISDIR(before.st_mode):
            with os.scandir(path) as entries:
                next(entries, None)
        else:
            with open(path, "rb", buffering=0) as file:
                file.read(1)
        return _due_at(os.stat(path))
    return 0.0


def _due_at(status: os.stat_result) -> float:
    """Return the second in which a file becomes due; 0 if it is due already."""
    now = time.time()
    at = status.st_atime // 1 + DAY_S + _CLOCK_STEP_S
    changed = max(status.st_mtime_ns, status.st_ctime_ns)
    return at if status.st_atime_ns > changed and at > now else 0.0


def _files(path: str) -> Iterator[str]:
    """Yield a path and, of a folder, all files and folders below. Symbolic links and devices are left out."""
    folders = []
    if os.path.isdir(path):
        folders.append(path)
        yield path
    elif os.path.isfile(path):
        yield path
    while folders:
        with contextlib.suppress(OSError), os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                    yield entry.path
                elif entry.is_file(follow_symlinks=False):
                    yield entry.path
