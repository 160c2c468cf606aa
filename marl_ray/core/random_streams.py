"""Named random streams of one seed.

A random number is a pure function of the seed and the stream's name. A resumed run therefore needs no generator state,
and the order of events does not affect results.
"""

from __future__ import annotations

import hashlib
import random


def stream_seed(seed: int, *name: str | int) -> int:
    """Return the 62-bit seed of the stream called `name`."""
    digest = hashlib.sha256(repr((seed, *name)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 2


def random_stream(seed: int, *name: str | int) -> random.Random:
    """Return a generator for the stream called `name`."""
    return random.Random(stream_seed(seed, *name))
