"""Python files that guests can read: the standard library and the installed packages that the settings allow.

As root, guests run as another user. If Python lies in a private folder (`/root/.pyenv`), the zygote is started from a
copy of the standard library, because guests could import only preloaded modules otherwise. All sandboxes of a node
share the copy.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import importlib.metadata
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

_EXCLUDED = shutil.ignore_patterns(
    *("site-packages", "test", "tests", "idlelib", "tkinter", "turtledemo", "ensurepip", "config-*", "_test*"),
    *("_tkinter*", "*.opt-?.pyc"),
)
_LIBRARY = os.path.join(sys.platlibdir, f"python{sys.version_info.major}.{sys.version_info.minor}")
_COMPLETE = "complete"
"""Name of the file written last. It holds the number of files, because cleaners of /tmp delete old files one by one."""
SINGLE_THREADED = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""Environment that keeps numerical libraries from starting threads: the zygote forks and must have a single thread."""


@functools.lru_cache(maxsize=16)
def find_packages(names: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the folders to import packages from, and the files and folders that guests may read there.

    Readable is everything that the distributions of the packages install (bundled libraries, metadata), and nothing of
    other distributions: dependencies have to be named too. Raises ModuleNotFoundError for a package that is not
    installed.
    """
    distributions = importlib.metadata.packages_distributions() if names else {}
    roots: dict[str, None] = {}
    paths: dict[str, None] = {}
    for name in names:
        if name not in distributions:
            raise ModuleNotFoundError(f"sandbox.packages: {name} is not installed here")
        for distribution in map(importlib.metadata.distribution, distributions[name]):
            root = os.path.realpath(str(distribution.locate_file("")))
            entries = {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}
            roots[root] = None
            for entry in sorted(entries):
                path = os.path.join(root, entry)
                if os.path.exists(path):
                    paths[path] = None
    return tuple(roots), tuple(paths)


def readable_by_all(prefix: str) -> bool:
    """Return whether any user can enter every folder on the way to a Python's library."""
    folder = Path(prefix) / "lib"
    existing = [path for path in (folder, *folder.parents) if path.exists()]
    return all(path.stat().st_mode & 0o001 for path in existing)


def essential_files(prefix: str) -> list[str]:
    """Return Python's library without installed packages, the system's shared libraries, locales and time zones."""
    library = Path(prefix, _LIBRARY)
    files = [path for path in library.iterdir() if path.name not in ("site-packages", "dist-packages")]
    # On most systems some of these are links to the others.
    for folder in set(map(os.path.realpath, ("/lib", "/lib64", "/usr/lib", "/usr/lib64"))):
        files += Path(folder).glob("*.so*")
        files += Path(folder).glob("*-linux-*/*.so*")
    return [*set(map(os.path.realpath, files)), "/usr/lib/locale", "/usr/share/zoneinfo"]


@functools.cache
def readable_copy(prefix: str) -> str | None:
    """Return a PYTHONHOME to use instead of `prefix`, or None if no folder can hold the copy."""
    name = hashlib.sha256(f"{prefix} {sys.version}".encode()).hexdigest()[:16]
    for base in dict.fromkeys((tempfile.gettempdir(), "/var/tmp")):
        with contextlib.suppress(OSError):
            if not readable_by_all(base) or os.statvfs(base).f_flag & os.ST_NOEXEC:  # shared libraries need exec
                continue
            target = Path(base) / f"marl-ray-python-{name}"
            copy = target
            if not _is_own_copy(target):
                copy = _make_copy(prefix, target)
            # Cleaners of temporary folders skip locked files; the lock is held until this process ends.
            fcntl.flock(os.open(copy, os.O_RDONLY | os.O_CLOEXEC), fcntl.LOCK_SH)
            return str(copy)
    return None


def _make_copy(prefix: str, target: Path) -> Path:
    """Copy the library and return its folder: `target`, unless an untrusted folder already has that name."""
    copy = Path(tempfile.mkdtemp(prefix=f"{target.name}-", dir=target.parent))
    shutil.copytree(Path(prefix, _LIBRARY), copy / _LIBRARY, ignore=_EXCLUDED)
    (copy / _COMPLETE).write_text(str(_file_count(copy)), encoding="utf-8")
    for folder, _, files in os.walk(copy, topdown=False):  # the top folder is opened last, and private until then
        for file in files:
            os.chmod(os.path.join(folder, file), 0o644)
        os.chmod(folder, 0o755)
    try:
        copy.rename(target)
    except OSError:  # `target` exists: made by a faster sandbox, or not to be trusted
        if not _is_own_copy(target):
            return copy
        shutil.rmtree(copy)
    return target


def _is_own_copy(folder: Path) -> bool:
    """Return whether this user made the folder, no other user can change it, and no file is missing."""
    try:
        status = folder.lstat()
        if status.st_uid != os.geteuid() or status.st_mode & 0o022 or folder.is_symlink():
            return False
        return int((folder / _COMPLETE).read_text(encoding="utf-8")) == _file_count(folder) - 1
    except (OSError, ValueError):
        return False


def _file_count(folder: Path) -> int:
    return sum(len(files) for _, _, files in os.walk(folder))
