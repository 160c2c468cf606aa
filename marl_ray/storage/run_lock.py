"""The lock of a run folder, which admits one writer at a time.

The kernel holds the lock (flock) while a process has the file open, and releases it when that process ends in any way.
Child processes do not inherit the lock: the file is closed on exec and when Python forks.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from marl_ray.core.errors import UserError

logger = logging.getLogger(__name__)
NO_LOCKS = (errno.ENOTSUP, errno.ENOLCK, errno.ENOSYS)  # errors of file systems without locks
_held: set[int] = set()  # file descriptors of the locks that this process holds


@contextmanager
def hold_lock(path: Path) -> Iterator[None]:
    """Hold the lock at `path`, whose folder must exist. Raises UserError if another process holds it.

    On a file system without locks, log a warning and continue.
    """
    file = _lock(path)
    _held.add(file)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)  # while locked: a process that waits for this file notices that it was deleted
        _held.discard(file)
        os.close(file)


def lock_holder(path: Path) -> str | None:
    """Return the description of the process that holds the lock, or None if the lock is free.

    On a file system without locks, return the last process that wrote the file and did not end regularly.
    """
    try:
        file = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        if not isinstance(error, BlockingIOError) and error.errno not in NO_LOCKS:
            raise
        return _read_holder(file)
    finally:
        os.close(file)
    return None


def _read_holder(file: int) -> str:
    return os.read(file, 1000).decode(errors="replace").strip() or "another process"


def _lock(path: Path) -> int:
    """Open and lock the file, write this process into it, and return its descriptor."""
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            other = _read_holder(file)
            os.close(file)
            raise UserError(
                f"{path.parent} is being written by {other}: wait for its end, or set another output.run_name"
            ) from None
        except OSError as error:
            if error.errno not in NO_LOCKS:
                os.close(file)
                raise
            logger.warning(
                f"{path.parent} cannot be locked ({error.strerror}): see to it that no other run writes there"
            )
        if _is_at(file, path):
            since = time.strftime("%Y-%m-%d %H:%M:%S %Z")
            with suppress(OSError):  # a full disk, which the first file of the run reports; the lock itself holds
                os.ftruncate(file, 0)
                os.write(file, f"process {os.getpid()} on {socket.gethostname()} since {since}\n".encode())
            return file
        os.close(file)  # the previous holder deleted it in the meantime


def _is_at(file: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except FileNotFoundError:
        return False


def _close_in_child() -> None:
    while _held:
        os.close(_held.pop())


os.register_at_fork(after_in_child=_close_in_child)
