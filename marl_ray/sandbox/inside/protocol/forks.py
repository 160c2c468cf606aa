"""What judge and zygote say to each other about guests: fixed structures on a socket that keeps messages apart."""

from __future__ import annotations

import struct
from typing import NamedTuple

FORK_REQUEST = struct.Struct("<cIIII")
"""`F` and the fields of GuestLimits, descriptors [connection, output, input?, errors?]; or `K` process, 0, 0, 0."""
FORK_REPLY = struct.Struct("<iid")
"""`F`: process or minus errno, 0, 0. `K`: process, wait status, CPU seconds."""


class GuestLimits(NamedTuple):
    """What one guest process may use; a spare guest fits a program when these are equal. MiB, seconds, bytes."""

    memory_mb: int
    cpu_s: int
    output: int
    reply: int
