"""Private tests of LiveCodeBench, which the hub has as base64 of compressed pickled JSON text."""

from __future__ import annotations

import base64
import pickletools
import zlib
from typing import Any

from marl_ray.core.errors import UserError

MAX_BYTES = 1 << 28
"""Maximum bytes of decompressed private tests."""


def unpacked(value: Any, task_id: str, field: str) -> Any:
    """Return the field, unpacked if it is LiveCodeBench's base64 of compressed pickled JSON text."""
    if not isinstance(value, str) or value.lstrip()[:1] in ("[", "{", ""):
        return value
    try:
        packed = zlib.decompressobj()
        data = packed.decompress(base64.b64decode(value, validate=True), MAX_BYTES)
        if packed.unconsumed_tail:  # too large
            return value
        return _pickled_text(data)
    except (zlib.error, ValueError):
        raise UserError(f"task {task_id}: {field} is neither JSON nor packed as LiveCodeBench's is") from None


_TEXT_OPCODES = ("SHORT_BINUNICODE", "BINUNICODE")
_SILENT_OPCODES = ("PROTO", "FRAME", "MEMOIZE", "STOP")
"""Opcodes beside a text in its pickle. Others call functions, or allocate as much memory as their argument says."""


def _pickled_text(data: bytes) -> str:
    """Return the text of a pickle that holds nothing else, without unpickling. Raises ValueError for other pickles."""
    texts = []
    for opcode, argument, _ in pickletools.genops(data):  # reads the opcodes and executes none
        if opcode.name in _TEXT_OPCODES:
            texts.append(str(argument))
        elif opcode.name not in _SILENT_OPCODES:
            raise ValueError(f"the pickle has the opcode {opcode.name}")
    if len(texts) != 1:
        raise ValueError(f"the pickle has {len(texts)} texts")
    return texts[0]
