"""Message formats: length-prefixed JSON frames, and the fixed-size fork requests between judge and zygote.

A frame is four bytes of length, little endian, followed by that many bytes of JSON.
"""

from __future__ import annotations

import json
import socket
import struct
from typing import Any, NamedTuple, Protocol

FORK_REQUEST = struct.Struct("<cIIII")
"""`F` and the fields of GuestLimits, with descriptors [connection, output, input?, errors?]; or `K`, process, 0, 0, 0."""
FORK_REPLY = struct.Struct("<iid")
"""To `F`: process or minus errno, 0, 0. To `K`: process, wait status, CPU seconds."""


class GuestLimits(NamedTuple):
    """Limits of one guest process in MiB, seconds and bytes; a spare guest fits a program if these are equal."""

    memory_mb: int
    cpu_s: int
    output: int
    reply: int


HEADER = struct.Struct("<I")
CHUNK = 1 << 14
"""Bytes to read while the size of a frame is unknown: for 128 KiB and more, malloc would map and unmap memory."""
_LONGEST = HEADER.size + (1 << 32) - 1
_ENCODER = json.JSONEncoder(separators=(",", ":"), check_circular=False)


class ConnectionClosed(Exception):
    """The peer closed the connection."""


class FrameTooLong(Exception):
    """The peer announced a frame beyond the limit; the argument is its size in bytes, header included."""


def pack(message: Any) -> bytes:
    """Encode one frame."""
    body = _ENCODER.encode(message).encode()
    return HEADER.pack(len(body)) + body


def send(connection: socket.socket, message: Any) -> None:
    """Send one frame on a blocking socket."""
    connection.sendall(pack(message))


class Receiver(Protocol):
    """The part of a socket that a FrameReader needs."""

    def recv(self, size: int, /) -> bytes: ...


class FrameReader:
    """A reader of frames, several per system call if they arrive together.

    `connection` is a blocking socket or another object with `recv`. An exception of `recv` interrupts a frame; the next
    call continues it. `longest` bounds a frame in bytes, header included, before it is read.
    """

    def __init__(self, connection: Receiver, longest: int = _LONGEST) -> None:
        self._receive = connection.recv
        self._longest = longest
        self._buffer: bytes | bytearray = b""

    @property
    def has_more(self) -> bool:
        """Whether more data arrived with the last frame."""
        return bool(self._buffer)

    def frame(self) -> bytes | bytearray:
        """Return the body of the next frame. Raises ConnectionClosed and FrameTooLong."""
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
        """Return the next frame's content; for trusted peers, which bound their own sizes."""
        return json.loads(self.frame())
