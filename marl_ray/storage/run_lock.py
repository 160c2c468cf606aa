"""The lock of a run folder: one writer at a time, and none that is dead.

The kernel holds it (flock) for the process that has the file open, and lets go of it when that process ends, however it
ends. Children do not inherit it: the file is closed when they start another program, and when Python forks.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from marl_ray.core.errors import UserError

logger = logging.getLogger(__name__)

NO_LOCKS = (errno.ENOTSUP, errno.ENOLCK, errno.ENOSYS)
"""What file systems say that have no locks."""

_held: set[int] = set()
"""Files of the locks of this process."""


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Hold the lock at `path` in a folder that is there. Raises UserError, which names who holds it.

    On a file system without locks it logs a warning, and the run goes on without a lock.
    """
    file = _lock(path)
    _held.add(file)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)  # before it is let go of: whoever waits for this file would hold another
        _held.discard(file)
        os.close(file)


def holder(path: Path) -> str | None:
    """Who holds the lock at `path`, as they say it; None: nobody does. Where the file system has no locks, it is who
    said so last and has not ended in order."""
    try:
        file = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        if not isinstance(error, BlockingIOError) and error.errno not in NO_LOCKS:
            raise
        return _said(file)
    finally:
        os.close(file)
    return None


def _said(file: int) -> str:
    return os.read(file, 1000).decode(errors="replace").strip() or "another process"


def _lock(path: Path) -> int:
    """An open file that is locked and says who we are."""
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            other = _said(file)
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
            os.ftruncate(file, 0)
            os.write(file, f"{_ourselves()}\n".encode())
            return file
        os.close(file)  # its holder has deleted it in between


def _is_at(file: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except FileNotFoundError:
        return False


def _ourselves() -> str:
    since = time.strftime("%Y-%m-%d %H:%M:%S %Z")
    return f"process {os.getpid()} on {socket.gethostname()} since {since}"


def _let_go() -> None:
    """A forked child holds nothing: its parent does."""
    while _held:
        os.close(_held.pop())


os.register_at_fork(after_in_child=_let_go)
