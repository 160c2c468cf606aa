"""Durable writes and user paths. A file that was closed but not synced may be empty after a machine failure."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from marl_ray.core.errors import UserError

DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM)
"""Disk errors that a user can correct."""


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


def output_folder(path: Path) -> Path:
    """Return the absolute path of a folder for results, which is new or empty. Raises UserError, which names --to."""
    target = expand_home(path).absolute()
    if target.is_dir() and any(target.iterdir()):
        raise UserError(f"output folder {target} is not empty: give another --to")
    if target.exists() and not target.is_dir():
        raise UserError(f"{target} is a file: give another --to")
    return target


@contextmanager
def complete_folder(target: Path) -> Iterator[Path]:
    """Yield the path of a hidden folder to create, which becomes the `output_folder` `target` at the end of the block,
    and is deleted if the block fails. Raises UserError, which names --to, for an OSError."""
    hidden = target.with_name(f".{target.name}.partial")
    shutil.rmtree(hidden, ignore_errors=True)
    try:
        yield hidden
        fsync_tree(hidden)
        if target.exists():
            target.rmdir()  # an empty folder
        os.replace(hidden, target)
        fsync(target.parent)
    except OSError as error:
        raise UserError(f"{target} cannot be written ({error.strerror or error}): give another --to") from None
    finally:
        shutil.rmtree(hidden, ignore_errors=True)


def expand_home(path: str | Path) -> Path:
    """Return the path with `~` and `~name` expanded. Raises UserError for an unknown user."""
    path = Path(path)
    try:
        return path.expanduser()
    except RuntimeError:
        raise UserError(f"{path}: there is no user {path.parts[0]}: write the path without ~") from None
