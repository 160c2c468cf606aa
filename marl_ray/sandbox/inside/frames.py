"""Framing of every conversation: four bytes of length, little endian, then that many bytes of JSON."""

from __future__ import annotations

import json
import socket
import struct
from typing import Any

HEADER = struct.Struct("<I")
CHUNK = 1 << 18


class Closed(Exception):
    """The other side is gone."""


def pack(message: Any) -> bytes:
    """One frame."""
    body = json.dumps(message, separators=(",", ":")).encode()
    return HEADER.pack(len(body)) + body


def send(connection: socket.socket, message: Any) -> None:
    """Send one frame on a blocking socket."""
    connection.sendall(pack(message))


class Reader:
    """Reads frames off a blocking socket, several per system call when they come together."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._buffer = bytearray()

    def _fill(self, size: int) -> None:
        while len(self._buffer) < size:
            data = self._connection.recv(CHUNK)
            if not data:
                raise Closed
            self._buffer += data

    def frame(self) -> bytes:
        """The body of the next frame. Closed at the end of the stream."""
        self._fill(HEADER.size)
        (size,) = HEADER.unpack_from(self._buffer)
        end = HEADER.size + size
        self._fill(end)
        body = bytes(self._buffer[HEADER.size : end])
        del self._buffer[:end]
        return body

    def message(self) -> Any:
        """The next frame's content; for trusted peers, which bound their own sizes."""
        return json.loads(self.frame())
