"""Framing of every conversation: four bytes of length, little endian, then that many bytes of JSON."""

from __future__ import annotations

import json
import socket
import struct
from typing import Any, Protocol

HEADER = struct.Struct("<I")
CHUNK = 1 << 14
"""What is read at a time as long as the size is not known. Beyond 128 KiB malloc would map and unmap a buffer for every message."""
_ENCODER = json.JSONEncoder(separators=(",", ":"), check_circular=False)


class Closed(Exception):
    """The other side is gone."""


def pack(message: Any) -> bytes:
    """One frame."""
    body = _ENCODER.encode(message).encode()
    return HEADER.pack(len(body)) + body


def send(connection: socket.socket, message: Any) -> None:
    """Send one frame on a blocking socket."""
    connection.sendall(pack(message))


class Receiver(Protocol):
    """What a Reader needs of a socket."""

    def recv(self, size: int, /) -> bytes: ...


class Reader:
    """Reads frames, several per system call when they come together.

    `connection` is a blocking socket, or anything else with its `recv`.
    """

    def __init__(self, connection: Receiver) -> None:
        self._receive = connection.recv
        self._buffer = b""

    def frame(self) -> bytes:
        """The body of the next frame. Closed at the end of the stream."""
        buffer = self._buffer
        end = 0
        while not end or len(buffer) < end:
            if not end and len(buffer) >= HEADER.size:
                end = HEADER.size + HEADER.unpack_from(buffer)[0]
                continue
            data = self._receive(max(CHUNK, end - len(buffer)))
            if not data:
                raise Closed
            buffer = buffer + data if buffer else data
        self._buffer = buffer[end:]
        return buffer[HEADER.size : end]

    def message(self) -> Any:
        """The next frame's content; for trusted peers, which bound their own sizes."""
        return json.loads(self.frame())
