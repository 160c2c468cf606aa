"""Installed packages that guests may have: what has to be readable for them.

A name is what programs import. Of its distribution all that lies beside the package is taken too (bundled libraries,
metadata), of other distributions nothing: what a package needs has to be named as well.
"""

from __future__ import annotations

import functools
import importlib.metadata
import os
from collections.abc import Sequence
from dataclasses import dataclass

SINGLE_THREADED = {f"{library}_NUM_THREADS": "1" for library in ("OPENBLAS", "OMP", "MKL")}
"""Variables that keep numerical libraries from starting threads: the zygote forks, which takes a single one."""


@dataclass(frozen=True, slots=True)
class GuestPackages:
    """Names to import, the folders that they are found in, and the files and folders to show of these."""

    names: tuple[str, ...] = ()
    roots: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()


@functools.lru_cache(maxsize=16)
def find_packages(names: Sequence[str]) -> GuestPackages:
    """These packages. Raises ModuleNotFoundError for one that is not installed."""
    known = importlib.metadata.packages_distributions() if names else {}
    roots: dict[str, None] = {}
    paths: dict[str, None] = {}
    for name in names:
        if name not in known:
            raise ModuleNotFoundError(f"sandbox.packages: {name} is not installed here")
        for distribution in map(importlib.metadata.distribution, known[name]):
            root = os.path.realpath(str(distribution.locate_file("")))
            beside = {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}
            roots[root] = None
            paths |= dict.fromkeys(path for part in sorted(beside) if os.path.exists(path := os.path.join(root, part)))
    return GuestPackages(tuple(names), tuple(roots), tuple(paths))
