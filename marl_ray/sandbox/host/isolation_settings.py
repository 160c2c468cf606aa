"""Isolation levels and the settings of a sandbox."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from marl_ray.sandbox.inside.protocol.records import Limits

LEVELS = ("none", "process", "process+landlock", "bwrap")
"""Isolation levels, weakest first."""
MAX_SCRATCH_MB = 1024
"""Scratch folders are memory of the machine, in addition to a program's own memory limit."""


class SandboxUnavailable(Exception):
    """No acceptable isolation level is available on this machine; the message gives the reasons in one line."""


@dataclass(frozen=True, slots=True)
class SandboxSettings:
    """Settings of a sandbox.

    Raises ValueError for an unknown isolation or level, a size out of range and a package name that is no identifier.
    """

    isolation: Literal["auto", "bwrap", "process", "none"] = "auto"
    """`auto`: the strongest level that passes its self-test. `process`: with Landlock where the kernel has Landlock."""
    require: str | None = None
    """Minimum level (see `LEVELS`); a sandbox that cannot reach this level does not start."""
    allow_unsafe: bool = False
    """Permit level `none`, also as the last resort of `auto`."""
    limits: Limits = field(default_factory=Limits)
    """Limits of programs that bring none of their own."""
    packages: tuple[str, ...] = ()
    """Import names of installed packages that programs may use. The zygote preloads them; guests can only read them."""
    scratch_mb: int = 0
    """MiB of files that a program may write to its own working directory. Needs Landlock of Linux 6.2 or newer."""

    def __post_init__(self) -> None:
        if self.isolation not in ("auto", "bwrap", "process", "none"):
            raise ValueError(f"sandbox.isolation: unknown value {self.isolation!r}")
        if self.require is not None and self.require not in LEVELS:
            raise ValueError(f"sandbox.require: unknown level {self.require!r}; known are {', '.join(LEVELS)}")
        if isinstance(self.scratch_mb, bool) or not 0 <= self.scratch_mb <= MAX_SCRATCH_MB:
            raise ValueError(f"sandbox.scratch_mb: {self.scratch_mb} is not between 0 and {MAX_SCRATCH_MB}")
        for name in self.packages:
            if not name.isidentifier():
                raise ValueError(f"sandbox.packages: {name!r} is not an import name")

    def candidates(self) -> list[str]:
        """Return the levels to try, strongest first. Raises SandboxUnavailable for contradictory settings."""
        levels = {
            "auto": ["bwrap", "process+landlock", "process", "none"],
            "bwrap": ["bwrap"],
            "process": ["process+landlock", "process"],
            "none": ["none"],
        }[self.isolation]
        if self.isolation == "none" and not self.allow_unsafe:
            raise SandboxUnavailable("isolation 'none' runs programs unprotected: it needs allow_unsafe: true")
        if not self.allow_unsafe:
            levels = [level for level in levels if level != "none"]
        if self.require is not None:
            minimum = LEVELS.index(self.require)
            levels = [level for level in levels if LEVELS.index(level) >= minimum]
            if not levels:
                raise SandboxUnavailable(f"isolation '{self.isolation}' cannot reach the required '{self.require}'")
        return levels
