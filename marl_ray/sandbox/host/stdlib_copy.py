"""A copy of Python's library that every user may read, where Python itself lies under a private folder.

As root, guests run as another user. With a Python under `/root/.pyenv` they could import only what was loaded ahead,
so the zygote is started on a copy. It is made once per node and Python, is shared by all sandboxes there, and holds no
more than the standard library.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import os
import shutil
import sys
import tempfile
from pathlib import Path

_LEFT_OUT = shutil.ignore_patterns(
    *("site-packages", "test", "tests", "idlelib", "tkinter", "turtledemo", "ensurepip", "config-*", "_test*"),
    *("_tkinter*", "*.opt-?.pyc"),
)
_COMPLETE = "complete"
"""The file written last. It holds how many files there are: cleaners of /tmp take old ones away one by one."""


def readable_by_all(prefix: str) -> bool:
    """Whether an ordinary user can enter every folder on the way to a Python's library."""
    folder = Path(prefix) / "lib"
    return all(path.stat().st_mode & 0o001 for path in (folder, *folder.parents) if path.exists())


@functools.cache
def readable_copy(prefix: str) -> str | None:
    """A folder to take for `prefix` (PYTHONHOME), or None where there is no place for it."""
    library = Path(sys.platlibdir) / f"python{sys.version_info.major}.{sys.version_info.minor}"
    name = hashlib.sha256(f"{prefix} {sys.version}".encode()).hexdigest()[:16]
    for base in dict.fromkeys((tempfile.gettempdir(), "/var/tmp")):
        with contextlib.suppress(OSError):
            if not (readable_by_all(base) and _can_hold_code(base)):
                continue
            wanted = Path(base) / f"marl-ray-python-{name}"
            found = wanted if _is_ours(wanted) else _make(Path(prefix) / library, library, wanted)
            # Cleaners of temporary folders leave alone what is locked: held until this process ends.
            fcntl.flock(os.open(found, os.O_RDONLY | os.O_CLOEXEC), fcntl.LOCK_SH)
            return str(found)
    return None


def _can_hold_code(base: str) -> bool:
    """Whether shared libraries can be loaded from there."""
    return not os.statvfs(base).f_flag & os.ST_NOEXEC


def _make(source: Path, library: Path, wanted: Path) -> Path:
    """Copy the library; gives where it is now: `wanted`, unless something that is not ours has that name."""
    made = Path(tempfile.mkdtemp(prefix=f"{wanted.name}-", dir=wanted.parent))
    shutil.copytree(source, made / library, ignore=_LEFT_OUT)
    (made / _COMPLETE).write_text(str(_count(made)))
    for folder, _, files in os.walk(made, topdown=False):  # the folder itself comes last: until then it is private
        for file in files:
            os.chmod(os.path.join(folder, file), 0o644)
        os.chmod(folder, 0o755)
    try:
        made.rename(wanted)
    except OSError:  # it exists: somebody was faster, or it is not to be trusted
        if not _is_ours(wanted):
            return made
        shutil.rmtree(made)
    return wanted


def _is_ours(folder: Path) -> bool:
    """Whether this user has made this folder, nobody else can change it, and nothing is missing."""
    try:
        status = folder.lstat()
        if status.st_uid != os.geteuid() or status.st_mode & 0o022 or folder.is_symlink():
            return False
        return int((folder / _COMPLETE).read_text()) == _count(folder) - 1
    except (OSError, ValueError):
        return False


def _count(folder: Path) -> int:
    return sum(len(files) for _, _, files in os.walk(folder))
