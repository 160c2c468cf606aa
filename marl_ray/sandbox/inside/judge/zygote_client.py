"""The judge's connection to the zygote, which forks and kills guests."""

from __future__ import annotations

import os
import signal
import socket
import struct
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..isolation.process import anonymous_file
from ..protocol.messages import FORK_REPLY, FORK_REQUEST, GuestLimits


def describe_exit(status: int) -> str:
    """Describe how a process ended, from its wait status."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        names = {known.value: known.name for known in signal.Signals}  # most real-time signals have no name
        return f"the process was killed by {names.get(number, f'signal {number}')}"
    return f"the process ended with exit status {os.WEXITSTATUS(status)}"


class ZygoteError(BaseException):
    """Failure of the zygote (it cannot fork, or is gone), which is not the program's fault."""


@dataclass(slots=True)
class GuestProcess:
    """A guest process; `pid` is 0 until the zygote has replied, and negative if the fork failed."""

    pid: int
    connection: socket.socket
    output: int
    limits: GuestLimits

    def release(self) -> None:
        self.connection.close()
        os.close(self.output)


class ZygoteClient:
    """Client that pipelines requests to the zygote: replies come in order and are awaited only when needed.

    With `wait_for_kills` no guest starts before a kill is complete, since a guest may leave files behind.
    """

    def __init__(self, link: socket.socket, wait_for_kills: bool) -> None:
        self._link = link
        self.wait_for_kills = wait_for_kills
        self._pending: deque[Callable[[int, int], None]] = deque()
        """Called with the process id (or minus errno) and the wait status of each reply."""
        self._spare: GuestProcess | None = None
        self._makes_spares = True

    def fork(self, limits: GuestLimits, *streams: int) -> GuestProcess:
        """Return a guest that waits for its program: the spare guest if its limits are equal, else a new one.

        `streams` are descriptors of its standard input and, optionally, of a standard error apart from its output.
        Raises ZygoteError if the zygote cannot fork.
        """
        guest = self._spare
        self._spare = None
        if guest is not None and (streams or guest.limits != limits):
            self.kill(guest)
            guest = None
        if guest is None:
            guest = self._request(limits, *streams)
        self._await_pid(guest)
        if guest.pid < 0:
            guest.release()
            raise ZygoteError(f"the zygote cannot fork: {os.strerror(-guest.pid)}")
        return guest

    def take_spare(self) -> GuestProcess | None:
        """Return the spare guest, if there is one, for another client. The caller kills it in the end."""
        spare = self._spare
        self._spare = None
        if spare is None:
            return None
        self._await_pid(spare)
        if spare.pid < 0:
            spare.release()
            return None
        return spare

    def use_spare(self, spare: GuestProcess | None) -> None:
        """Use a spare guest of another client, and make no spare guests."""
        self._spare = spare
        self._makes_spares = False

    def connect_again(self, spare: GuestProcess | None) -> socket.socket:
        """Return a further connection to the zygote, for a process that must not use this one, and give it a guest.
        There is one further connection at a time."""
        ours, theirs = socket.socketpair()
        with theirs:
            pid = 0 if spare is None else spare.pid
            self._send(FORK_REQUEST.pack(b"L", pid, 0, 0, 0), [theirs.fileno()])
        return ours

    def end_further_connection(self) -> None:
        """Let the zygote close the further connection and kill its guests. One of them may hold the other end."""
        self._send(FORK_REQUEST.pack(b"E", 0, 0, 0, 0), ())

    def prepare_spare(self, limits: GuestLimits) -> None:
        """Fork the next guest while the current one works."""
        if self._makes_spares and self._spare is None:
            self._spare = self._request(limits)

    def kill(self, guest: GuestProcess) -> None:
        """Kill and reap a guest, without waiting unless the client was made with `wait_for_kills`."""
        self._await_pid(guest)
        if guest.pid > 0 and self.wait_for_kills:
            self.kill_and_wait(guest)
        elif guest.pid > 0:
            # The connection is closed after the kill: closing would wake the guest up.
            self._send(FORK_REQUEST.pack(b"K", guest.pid, 0, 0, 0), (), lambda pid, status: guest.release())
        else:
            guest.release()

    def kill_and_wait(self, guest: GuestProcess) -> int:
        """Kill and reap a guest; return its wait status (which tells if it had ended before)."""
        ended: list[int] = []
        self._send(FORK_REQUEST.pack(b"K", guest.pid, 0, 0, 0), (), lambda pid, status: ended.append(status))
        while not ended:
            self._receive()
        guest.release()
        return ended[0]

    def _request(self, limits: GuestLimits, *streams: int) -> GuestProcess:
        ours, theirs = socket.socketpair()
        guest = GuestProcess(0, ours, anonymous_file("output"), limits)

        def started(pid: int, status: int) -> None:
            guest.pid = pid

        self._send(FORK_REQUEST.pack(b"F", *limits), [theirs.fileno(), guest.output, *streams], started)
        theirs.close()
        return guest

    def _send(
        self, request: bytes, descriptors: Sequence[int], on_reply: Callable[[int, int], None] | None = None
    ) -> None:
        numbers = struct.pack(f"{len(descriptors)}i", *descriptors)
        rights = []
        if descriptors:
            rights.append((socket.SOL_SOCKET, socket.SCM_RIGHTS, numbers))
        try:
            self._link.sendmsg([request], rights)
        except OSError as error:
            raise ZygoteError(f"the zygote is gone ({error})") from None
        if on_reply is not None:
            self._pending.append(on_reply)

    def _await_pid(self, guest: GuestProcess) -> None:
        while guest.pid == 0:
            self._receive()

    def _receive(self) -> None:
        data = self._link.recv(FORK_REPLY.size)
        if len(data) != FORK_REPLY.size:
            raise ZygoteError("the zygote is gone")
        self._pending.popleft()(*FORK_REPLY.unpack(data))
