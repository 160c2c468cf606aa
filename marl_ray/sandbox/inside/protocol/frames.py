"""Framing of every conversation: four bytes of length, little endian, then that many bytes of JSON."""

from __future__ import annotations

import json
import socket
import struct
from typing import Any, Protocol

HEADER = struct.Struct("<I")
CHUNK = 1 << 14
"""What is read at a time while the size is not known: for 128 KiB and more, malloc would map and unmap memory."""
_LONGEST = HEADER.size + (1 << 32) - 1
_ENCODER = json.JSONEncoder(separators=(",", ":"), check_circular=False)


class ConnectionClosed(Exception):
    """The other side is gone."""


class FrameTooLong(Exception):
    """The other side announces a frame beyond the limit: so many bytes with its header."""


def pack(message: Any) -> bytes:
    """One frame."""
    body = _ENCODER.encode(message).encode()
    return HEADER.pack(len(body)) + body


def send(connection: socket.socket, message: Any) -> None:
    """Send one frame on a blocking socket."""
    connection.sendall(pack(message))


class Receiver(Protocol):
    """What a FrameReader needs of a socket."""

    def recv(self, size: int, /) -> bytes: ...


class FrameReader:
    """Reads frames, several per system call when they come together.

    `connection` is a blocking socket, or anything else with its `recv`; what that raises interrupts a frame, and the
    next call goes on with it. `longest` bounds a frame, header included, before it is read.
    """

    def __init__(self, connection: Receiver, longest: int = _LONGEST) -> None:
        self._receive = connection.recv
        self._longest = longest
        self._buffer: bytes | bytearray = b""

    @property
    def has_more(self) -> bool:
        """Whether more came with the last frame."""
        return bool(self._buffer)

    def frame(self) -> bytes | bytearray:
        """The body of the next frame. Raises ConnectionClosed at the end of the stream, FrameTooLong."""
        while True:
            buffer, need = self._buffer, HEADER.size
            if len(buffer) >= need:
                need += HEADER.unpack_from(buffer)[0]
                if need > self._longest:
                    raise FrameTooLong(need)
                if len(buffer) >= need:
                    self._buffer = buffer[need:]
                    return buffer[HEADER.size : need]
            data = self._receive(max(CHUNK, need - len(buffer)))
            if not data:
                raise ConnectionClosed
            if isinstance(buffer, bytearray):
                buffer += data
            else:
                self._buffer = bytearray(buffer + data) if buffer else data

    def message(self) -> Any:
        """The next frame's content; for trusted peers, which bound their own sizes."""
        return json.loads(self.frame())
