"""A command in namespaces of its own: its first process, which starts the command and reaps all other processes.

The first process of a process namespace ends with all others in it, so nothing outlives the command.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
from collections.abc import Callable
from typing import Any, NoReturn

from . import private_root, process, seccomp

NOBODY = 65534
"""User of a command whose launcher is root: root has no limit of processes."""
OPEN_FILES = 1024
_STATUS = struct.Struct("=i")
_PR_SET_PDEATHSIG = 1


class ConfinedCommand:
    """A running command, as its launcher sees it. Raises OSError if a restriction cannot be enforced.

    `confinement` has `folder`, `files`, `readable`, `port` and `processes` (see the launcher of the gateway). `run`
    becomes the command, with its other limits. `pid` is the parent of the command's first process, and `listening` the
    socket that the command connects to.
    """

    def __init__(self, confinement: dict[str, Any], memory_mb: int, run: Callable[[], NoReturn]) -> None:
        self._own_end, theirs = socket.socketpair()
        self.pid = os.fork()
        if not self.pid:
            self._own_end.close()
            _parent_process(theirs, confinement, memory_mb, run)
        theirs.close()
        message, descriptors, _, _ = socket.recv_fds(self._own_end, 1024, 1)
        if not descriptors:
            os.waitpid(self.pid, 0)
            raise OSError(message.decode() or "its first process has ended")
        self.listening = socket.socket(fileno=descriptors[0])

    def status(self) -> int:
        """Return the wait status of the command after the end of `pid`; that of SIGKILL if there is none."""
        with contextlib.suppress(OSError):
            data = self._own_end.recv(_STATUS.size, socket.MSG_DONTWAIT)
            if len(data) == _STATUS.size:
                return int(_STATUS.unpack(data)[0])
        return int(signal.SIGKILL)


def _parent_process(
    launcher: socket.socket, confinement: dict[str, Any], memory_mb: int, run: Callable[[], NoReturn]
) -> NoReturn:
    """Start the first process of a process namespace, and end with it. The launcher itself could start no thread once
    its children belong to another namespace."""
    process.libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    try:
        if os.geteuid() != 0:
            private_root.own_user()
        private_root.own_processes()
    except OSError as error:
        launcher.send((error.strerror or str(error)).encode())
        os._exit(1)
    pid = os.fork()
    if not pid:
        _first_process(launcher, confinement, memory_mb, run)
    launcher.close()
    os.waitpid(pid, 0)
    os._exit(0)


def _first_process(
    launcher: socket.socket, confinement: dict[str, Any], memory_mb: int, run: Callable[[], NoReturn]
) -> NoReturn:
    """Enter the other namespaces, start the command, and end with it."""
    process.libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    user = NOBODY if os.geteuid() == 0 else None
    try:
        mask = os.umask(0o022)
        process.offer_to_oom_killer()
        with private_root.listen(confinement["port"]) as listening:
            folder, files, readable = confinement["folder"], confinement["files"], confinement["readable"]
            private_root.enter(folder, files, readable, memory_mb, user)
            if user is not None:
                private_root.drop_user(user)
                process.libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # a change of user clears it
            os.umask(mask)
            command_filter = seccomp.Filter(seccomp.build_command_filter())
            socket.send_fds(launcher, [b"started"], [listening.fileno()])
    except OSError as error:
        launcher.send((error.strerror or str(error)).encode()[:1000])
        os._exit(1)
    pid = os.fork()
    if not pid:
        launcher.close()
        _restrict(command_filter, memory_mb, confinement["processes"])
        run()
    process.disable_dumps()
    ended = status = 0
    while ended != pid:
        ended, status = os.waitpid(-1, 0)
    launcher.send(_STATUS.pack(status))
    os._exit(0)


def _restrict(command_filter: seccomp.Filter, memory_mb: int, processes: int) -> None:
    """Put all limits on this process that the command inherits."""
    process.limit(
        NPROC=processes + 2, FSIZE=memory_mb << 20, NOFILE=OPEN_FILES
    )  # with the first process and its parent
    process.close_from(3)
    process.no_new_privs()
    command_filter.install()
