"""How long a start takes, by part."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SHOWN_S = 0.5
"""Parts that took less are not told."""


class StartupTimer:
    """Seconds of each part of a run's start, in the order in which parts first began, since this process began. Parts
    may go on side by side, and their sum be more than the whole. For use by one thread."""

    def __init__(self) -> None:
        self.parts: dict[str, float] = {"imports": process_age_s()}
        self._begun = time.monotonic() - self.parts["imports"]

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """One that goes on within; several of one name count as the slowest of them."""
        begun = time.monotonic()
        self.parts.setdefault(name, 0.0)
        yield
        self.parts[name] = max(self.parts[name], time.monotonic() - begun)

    @property
    def seconds(self) -> float:
        """Since this process began."""
        return time.monotonic() - self._begun

    def as_json(self) -> dict[str, float]:
        """All parts, and the whole until now as `ready`."""
        return {name: round(seconds, 2) for name, seconds in {**self.parts, "ready": self.seconds}.items()}

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {seconds:.0f}" for name, seconds in self.parts.items() if seconds >= SHOWN_S)
        return f"{self.seconds:.0f} s ({parts})"


def process_age_s() -> float:
    """Since this process was made; 0 on systems that do not tell."""
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        uptime = float(Path("/proc/uptime").read_text().split()[0])
    except OSError:
        return 0.0
    return max(0.0, uptime - int(fields[19]) / os.sysconf("SC_CLK_TCK"))
