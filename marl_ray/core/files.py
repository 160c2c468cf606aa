"""Durable writes and user paths. A file that was closed but not synced may be empty after a machine failure."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from marl_ray.core.errors import UserError


def fsync(path: Path) -> None:
    """Flush a file's content, or a folder's entries, to disk. Raises OSError, which names the path."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None
    finally:
        os.close(descriptor)


def fsync_tree(folder: Path) -> None:
    """Flush a folder with all files and folders below it to disk. Raises OSError as `fsync` does."""
    for path in folder.rglob("*"):
        fsync(path)
    fsync(folder)


def write_atomically(path: Path, content: bytes) -> None:
    """Write atomically and durably: readers see the old file or the complete new one. Raises OSError."""
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


def expand_home(path: str | Path) -> Path:
    """Return the path with `~` and `~name` expanded. Raises UserError for an unknown user."""
    path = Path(path)
    try:
        return path.expanduser()
    except RuntimeError:
        raise UserError(f"{path}: there is no user {path.parts[0]}: write the path without ~") from None
