"""How many threads each guest has: the zygote is asked by the kernel before one starts, and told when one ends.

Nothing else counts the threads of a single process without rights: RLIMIT_NPROC counts the user on the whole node, a
cgroup must be writable, and memory limits do not see a thread that brings its own small stack. A seccomp filter can
hand a system call to another process for decision (`SECCOMP_RET_USER_NOTIF`, Linux 5.5; see seccomp_unotify(2)). What
the call may do at all has been decided by then: flags are in registers, which nobody can change any more.
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import socket
import struct

from ..isolation import process, seccomp, syscalls

MAX_THREADS = 256
"""Threads of one guest besides its first."""

_RECEIVE, _SEND = 0xC0502100, 0xC0182101
_NOTIFICATION = struct.Struct("=QIIiIQ6Q")
"""`struct seccomp_notif`: id, pid, flags, and `struct seccomp_data`: number, architecture, instruction, arguments."""
_RESPONSE = struct.Struct("=QqiI")
"""`struct seccomp_notif_resp`: id, value, minus errno, flags."""
_CONTINUE = 1
_REPORT = struct.Struct("=i")


def available() -> bool:
    """Whether this kernel, and what this process runs in, lets system calls be decided so. Tried in a child."""
    child = process.fork()
    if child == 0:
        try:
            seccomp.Filter(seccomp.build_thread_filter()).install(listen=True)
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitpid(child, 0)[1] == 0


class ThreadCounter:
    """Which listener belongs to which guest, and its threads so far."""

    def __init__(self, poller: select.poll) -> None:
        self._poller = poller
        self._filter = seccomp.Filter(seccomp.build_thread_filter())
        self._ours, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._guests: dict[int, int] = {}
        self._threads: dict[int, int] = {}
        poller.register(self._ours, select.POLLIN)

    def submit(self) -> None:
        """In a guest, before there is a program: hand the zygote the right to decide, and keep nothing of it.

        Where that fails, the listener is gone and the guest cannot start threads.
        """
        listener = self._filter.install(listen=True)
        try:
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", listener))]
            self._theirs.sendmsg([_REPORT.pack(os.getpid())], rights)
        except OSError:
            pass
        finally:
            os.close(listener)

    # --- in the zygote ---

    def answer(self, ready: dict[int, int], children: set[int]) -> None:
        """What poll has found: first what guests ask, then new guests, whose descriptors may have the old numbers."""
        for listener in self._threads.keys() & ready.keys():
            if ready[listener] & select.POLLIN:
                self._decide(listener)
            else:
                self._drop(listener)  # no process is left behind it
        if self._ours.fileno() in ready:
            self._take(children)

    def forget(self, guest: int) -> None:
        """A guest is being buried."""
        listener = self._guests.get(guest)
        if listener is not None:
            self._drop(listener)

    def _take(self, children: set[int]) -> None:
        data, ancillary, _, _ = self._ours.recvmsg(_REPORT.size, socket.CMSG_SPACE(4))
        if not ancillary:  # this process has no descriptor left: that guest can start no threads
            return
        (listener,) = struct.unpack("i", ancillary[0][2])
        (guest,) = _REPORT.unpack(data)
        if guest not in children:  # buried already
            os.close(listener)
            return
        self._guests[guest] = listener
        self._threads[listener] = 0
        self._poller.register(listener, select.POLLIN)

    def _decide(self, listener: int) -> None:
        notification = bytearray(_NOTIFICATION.size)
        try:
            fcntl.ioctl(listener, _RECEIVE, notification)
            number, _, _, call = _NOTIFICATION.unpack(notification)[:4]
            starts = call == syscalls.number("clone")
            refused = starts and self._threads[listener] >= MAX_THREADS
            if not refused:
                self._threads[listener] = max(0, self._threads[listener] + (1 if starts else -1))
            answer = (number, 0, -errno.EAGAIN, 0) if refused else (number, 0, 0, _CONTINUE)
            fcntl.ioctl(listener, _SEND, _RESPONSE.pack(*answer))
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.EINPROGRESS):  # the thread was killed meanwhile
                raise

    def _drop(self, listener: int) -> None:
        self._poller.unregister(listener)
        del self._threads[listener]
        self._guests = {guest: other for guest, other in self._guests.items() if other != listener}
        os.close(listener)
