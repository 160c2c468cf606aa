"""`marl-ray sandbox`: the library's own command line."""

from __future__ import annotations

from collections.abc import Sequence


def main(argv: Sequence[str]) -> int:
    """The command. Returns the exit code."""
    from marl_ray.sandbox.__main__ import main as sandbox_main

    return sandbox_main(argv)
