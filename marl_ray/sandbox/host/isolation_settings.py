"""How programs are to be isolated, and what is raised where that is not to be had."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from marl_ray.sandbox.host.spawn import LEVELS
from marl_ray.sandbox.inside.protocol.records import Limits

MAX_SCRATCH_MB = 1024
"""It is memory of the machine, beside what a program has."""


class SandboxUnavailable(Exception):
    """No acceptable level of isolation can be had here; the message says why in one line."""


@dataclass(frozen=True, slots=True)
class SandboxSettings:
    """How programs are to be isolated.

    `isolation`: "auto" takes the best level that proves itself here; "bwrap" and "none" exactly that one;
    "process" with Landlock where there is Landlock. `require`: a level (see `launch.LEVELS`) below which to
    refuse. `allow_unsafe`: let "auto" fall back to "none" and accept "none" at all. `limits`: for programs
    without their own. `packages`: installed packages, by the names they are imported with, that programs may have
    beside the standard library; they are loaded ahead and can only be read. `scratch_mb`: MiB that a program may write
    to files, in an empty folder of its own that is its current one; needs Landlock as of Linux 6.2, and is refused at
    levels without it.
    """

    isolation: Literal["auto", "bwrap", "process", "none"] = "auto"
    require: str | None = None
    allow_unsafe: bool = False
    limits: Limits = field(default_factory=Limits)
    packages: tuple[str, ...] = ()
    scratch_mb: int = 0

    def __post_init__(self) -> None:
        if self.isolation not in ("auto", "bwrap", "process", "none"):
            raise ValueError(f"sandbox.isolation: unknown value {self.isolation!r}")
        if self.require is not None and self.require not in LEVELS:
            raise ValueError(f"sandbox.require: unknown level {self.require!r}; known are {', '.join(LEVELS)}")
        if isinstance(self.scratch_mb, bool) or not 0 <= self.scratch_mb <= MAX_SCRATCH_MB:
            raise ValueError(f"sandbox.scratch_mb: {self.scratch_mb} is not within 0 and {MAX_SCRATCH_MB}")
        for name in self.packages:
            if not name.isidentifier():
                raise ValueError(f"sandbox.packages: {name!r} is not a name to import")

    def candidates(self) -> list[str]:
        """Levels to try, best first. Raises SandboxUnavailable for settings that contradict each other."""
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
            least = LEVELS.index(self.require)
            levels = [level for level in levels if LEVELS.index(level) >= least]
            if not levels:
                raise SandboxUnavailable(f"isolation '{self.isolation}' cannot reach the required '{self.require}'")
        return levels
