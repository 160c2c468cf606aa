"""Files that are whole or absent, whatever ends the process or the machine."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from marl_ray.core.disk import sync


def write_atomically(path: Path, content: bytes) -> None:
    """Until this returns, the file is absent or what it was; then it is on disk. Raises OSError, which names it."""
    hidden = path.with_name(f".{path.name}")
    try:
        with hidden.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(hidden, path)
        sync(path.parent)
    except OSError as error:
        with suppress(OSError):
            hidden.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(path)) from None
