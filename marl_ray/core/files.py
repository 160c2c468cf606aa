"""What is on disk, and stays when the machine goes: a file that was only closed may come back empty."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def fsync(path: Path) -> None:
    """A file's content, or the names in a folder, are on disk. Raises OSError, which names it."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None
    finally:
        os.close(opened)


def fsync_tree(folder: Path) -> None:
    """A folder with all files and folders below it is on disk. Raises OSError as `sync` does."""
    for path in folder.rglob("*"):
        fsync(path)
    fsync(folder)


def write_atomically(path: Path, content: bytes) -> None:
    """Until this returns, the file is absent or what it was; then it is on disk. Raises OSError, which names it."""
    hidden = path.with_name(f".{path.name}")
    try:
        with hidden.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(hidden, path)
        fsync(path.parent)
    except OSError as error:
        with suppress(OSError):
            hidden.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(path)) from None
