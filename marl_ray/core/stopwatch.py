"""How long things take."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Stopwatch:
    """Seconds by name. What is measured more than once, as by agents side by side, counts with its longest time."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        """Measure what happens inside."""
        begun = time.monotonic()
        yield
        self.seconds[name] = max(self.seconds.get(name, 0.0), time.monotonic() - begun)
