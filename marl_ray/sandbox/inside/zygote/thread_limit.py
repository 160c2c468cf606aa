"""Limit on the threads of a guest: the kernel asks the zygote before a thread starts, and notifies it when one ends.

Nothing else counts the threads of one unprivileged process: RLIMIT_NPROC counts the user on the whole node, a cgroup
must be writable, and memory limits miss threads with small stacks. The seccomp filter delegates the decision to the
zygote (`SECCOMP_RET_USER_NOTIF`, Linux 5.5; see seccomp_unotify(2)). The guest's main filter has checked the flags of
the call by then; they are in registers, which cannot change any more.
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import socket
import struct
from collections.abc import Container

from ..isolation import process, seccomp, syscalls

MAX_THREADS = 256
"""Maximum number of threads of a guest besides its first."""

_RECEIVE, _SEND = 0xC0502100, 0xC0182101
_NOTIFICATION = struct.Struct("=QIIiIQ6Q")
"""`struct seccomp_notif`: id, pid, flags, and `struct seccomp_data`: number, architecture, instruction, arguments."""
_RESPONSE = struct.Struct("=QqiI")
"""`struct seccomp_notif_resp`: id, value, minus errno, flags."""
_CONTINUE = 1
_REPORT = struct.Struct("=i")


def available() -> bool:
    """Return whether this kernel and container permit seccomp notifications; tried in a child process."""
    child = process.fork()
    if child == 0:
        try:
            seccomp.Filter(seccomp.build_thread_filter()).install(listen=True)
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitpid(child, 0)[1] == 0


class ThreadCounter:
    """The seccomp listeners of all guests and their thread counts."""

    def __init__(self, poller: select.poll) -> None:
        self._poller = poller
        self._filter = seccomp.Filter(seccomp.build_thread_filter())
        self._zygote_end, self._guest_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._guests: dict[int, int] = {}
        self._threads: dict[int, int] = {}
        poller.register(self._zygote_end, select.POLLIN)

    def install_filter(self) -> None:
        """Install the filter in a guest, before there is a program, and send its listener to the zygote.

        If sending fails, the listener is closed and the guest cannot start threads.
        """
        listener = self._filter.install(listen=True)
        try:
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", listener))]
            self._guest_end.sendmsg([_REPORT.pack(os.getpid())], rights)
        except OSError:
            pass
        finally:
            os.close(listener)

    # --- in the zygote ---

    def handle_events(self, ready: dict[int, int], children: Container[int]) -> None:
        """Handle poll events: first notifications, then new guests, whose listeners may reuse descriptor numbers."""
        for listener in self._threads.keys() & ready.keys():
            if ready[listener] & select.POLLIN:
                self._answer_notification(listener)
            else:
                self._drop(listener)  # all its processes have ended
        if self._zygote_end.fileno() in ready:
            self._add_guest(children)

    def remove_guest(self, guest: int) -> None:
        """Drop the listener of a guest that is being reaped."""
        listener = self._guests.get(guest)
        if listener is not None:
            self._drop(listener)

    def _add_guest(self, children: Container[int]) -> None:
        data, ancillary, _, _ = self._zygote_end.recvmsg(_REPORT.size, socket.CMSG_SPACE(4))
        if not ancillary:  # out of descriptors: this guest cannot start threads
            return
        (listener,) = struct.unpack("i", ancillary[0][2])
        (guest,) = _REPORT.unpack(data)
        if guest not in children:  # reaped already
            os.close(listener)
            return
        self._guests[guest] = listener
        self._threads[listener] = 0
        self._poller.register(listener, select.POLLIN)

    def _answer_notification(self, listener: int) -> None:
        notification = bytearray(_NOTIFICATION.size)
        try:
            fcntl.ioctl(listener, _RECEIVE, notification)
            number, _, _, call = _NOTIFICATION.unpack(notification)[:4]
            starts = call == syscalls.number("clone")
            count = self._threads[listener]
            if starts and count >= MAX_THREADS:
                response = _RESPONSE.pack(number, 0, -errno.EAGAIN, 0)
            else:
                self._threads[listener] = count + 1 if starts else max(0, count - 1)
                response = _RESPONSE.pack(number, 0, 0, _CONTINUE)
            fcntl.ioctl(listener, _SEND, response)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.EINPROGRESS):  # the thread was killed in the meantime
                raise

    def _drop(self, listener: int) -> None:
        self._poller.unregister(listener)
        del self._threads[listener]
        self._guests = {guest: other for guest, other in self._guests.items() if other != listener}
        os.close(listener)
