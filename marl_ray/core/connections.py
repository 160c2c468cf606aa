"""Connections of all servers of this package: a bound below the process's limit of open files, and a deadline.

A process without free descriptors is lost if it also runs Ray, because gRPC then aborts the process. So a listening
socket accepts only as many connections as the process can hold. A connection that waits for a request makes room for a
new one; without such a connection the new one is refused with status 503.

| a connection | ends after |
|---|---|
| sends no complete headers of a request | `HEADER_S` |
| does not read its reply | `WRITE_S` |
"""

from __future__ import annotations

import logging
import os
import resource
import select
import socket
import time
from collections.abc import Callable
from typing import Any

from marl_ray.core.errors import UserError

logger = logging.getLogger(__name__)
HEADER_S = 10.0
"""Seconds in which a client sends the headers of a request."""
WRITE_S = 30.0
"""Seconds in which a client reads a part of a reply."""
FILES = 1 << 16
"""Open files that suffice for every server. With the hard limit of some systems, a billion, a child process that closes
all possible descriptors would need minutes."""
CHECK_S = 1.0
"""Seconds between two searches for overdue connections."""
MIN_CONNECTIONS = 16
"""A server of fewer connections than this is refused."""
BACKLOG = 128
REFUSAL = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


def raise_file_limit() -> int:
    """Raise the limit of open files of this process to its hard limit or to `FILES`, and return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return FILES
    wanted = FILES if hard == resource.RLIM_INFINITY else min(hard, FILES)
    if soft >= wanted:
        return soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError):  # some systems have a lower limit than the hard limit that they name
        return soft
    return wanted


def connection_limit(most: int, reserved: int = 0) -> int:
    """Return the number of connections that a server of this process may have, at most `most`. `reserved` descriptors
    are for other purposes. Raises UserError if there is no room for a server."""
    files = raise_file_limit()
    used = len(os.listdir("/dev/fd"))
    # The other half is for files, child processes and the connections of Ray, which come and go.
    limit = min(most, (files - used - reserved) // 2)
    if limit < MIN_CONNECTIONS:
        needed = used + reserved + 2 * MIN_CONNECTIONS
        raise UserError(
            f"this process may open {files} files, too few for a server: allow at least {needed} (ulimit -n {needed})"
        )
    return limit


class ServerConnection(socket.socket):
    """An accepted connection, and the time until which it may wait. Times are of `time.monotonic`."""

    def __init__(self, listener: BoundedListener, accepted: socket.socket, address: Any) -> None:
        family, kind, protocol = accepted.family, accepted.type, accepted.proto
        super().__init__(family, kind, protocol, fileno=accepted.detach())
        self._listener = listener
        self._address = address
        self.end: Callable[[], object] = self.shut
        """Ends the connection at once."""
        self.waits_since: float | None = None
        """Begin of the wait for a request, None while a request is answered."""
        self.deadline: float | None = None
        """End of the present wait, None if the wait is not limited."""
        self.is_ending = False
        self.await_request(HEADER_S)

    def await_request(self, seconds: float) -> None:
        """Begin to wait for a request, at most `seconds`."""
        self.waits_since = time.monotonic()
        self.deadline = self.waits_since + seconds

    def begin_request(self) -> None:
        """Note that the headers of a request are complete."""
        self.waits_since = None
        self.deadline = None

    def shorten_wait(self, seconds: float) -> None:
        """Let the present wait end after at most `seconds` from now."""
        end = time.monotonic() + seconds
        if self.deadline is None or end < self.deadline:
            self.deadline = end

    def shut(self) -> None:
        """End both directions, so that a thread that reads or writes continues."""
        try:
            self.shutdown(socket.SHUT_RDWR)
        except OSError:  # the client has gone
            pass

    def close(self) -> None:
        super().close()
        self._listener.forget(self._address, self)


class BoundedListener(socket.socket):
    """A listening socket with at most `limit` open connections."""

    def __init__(self, family: int) -> None:
        # With the protocol, asyncio disables Nagle's algorithm, which would delay the second part of a reply by 40 ms.
        super().__init__(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        self.limit = MIN_CONNECTIONS
        self.connections: dict[Any, ServerConnection] = {}
        """Open connections by the client's address, the oldest first."""
        self._has_refused = False  # the warning appears once

    def accept(self) -> tuple[socket.socket, Any]:
        """Return a new connection. Raises BlockingIOError if another one ends first to make room, and
        ConnectionAbortedError if the new one is refused."""
        is_full = len(self.connections) >= self.limit
        if is_full:
            waiting = select.poll()
            waiting.register(self, select.POLLIN)
            # asyncio accepts until there is nothing to accept: no connection may end for a client that does not exist.
            if not waiting.poll(0) or self._make_room():
                raise BlockingIOError
        accepted, address = super().accept()
        if is_full:
            self._refuse(accepted)
            raise ConnectionAbortedError
        connection = ServerConnection(self, accepted, address)
        self.connections[address] = connection
        return connection, address

    def end_overdue(self) -> None:
        """End the connections whose time is over."""
        now = time.monotonic()
        for connection in list(self.connections.values()):  # a connection that ends is removed
            if connection.deadline is not None and connection.deadline < now:
                self._end(connection)

    def forget(self, address: Any, connection: ServerConnection) -> None:
        """Remove a closed connection. A newer connection may have its address by now."""
        if self.connections.get(address) is connection:
            del self.connections[address]

    def _make_room(self) -> bool:
        """End the connection that has waited for a request for the longest time. Return whether there is one, or one
        that ends already."""
        waiting = []
        for connection in list(self.connections.values()):
            if connection.is_ending:
                return True
            if connection.waits_since is not None:
                waiting.append((connection.waits_since, connection))
        if waiting:
            _, longest = min(waiting, key=lambda pair: pair[0])
            self._end(longest)
        return bool(waiting)

    def _end(self, connection: ServerConnection) -> None:
        connection.is_ending = True
        connection.end()

    def _refuse(self, accepted: socket.socket) -> None:
        if not self._has_refused:
            logger.warning(f"{self.limit} connections are open: further ones are refused until one ends")
        self._has_refused = True
        with accepted:
            try:
                accepted.send(REFUSAL)
            except OSError:  # the client has gone
                pass


def bind(host: str, port: int, settings: str = "--host or --port") -> BoundedListener:
    """Return a listening socket; `connection_limit` sets its limit as soon as the server starts. Raises UserError,
    which names the `settings`, if the address cannot be used."""
    raise_file_limit()
    listener = BoundedListener(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise UserError(f"{host}:{port} cannot be used ({error.strerror}): give another {settings}") from None
    return listener
