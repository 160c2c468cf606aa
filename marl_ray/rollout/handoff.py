"""Which joint actions of a node the next turn goes on from.

A handoff takes the joint actions' rewards and the node's own random stream, and gives the indices to expand.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence


def one_at_random(rewards: Sequence[float], rng: random.Random) -> list[int]:
    """Any one, all alike."""
    return [rng.randrange(len(rewards))]


def best(rewards: Sequence[float], rng: random.Random) -> list[int]:
    """The one with the highest reward; of equals the first."""
    return [max(range(len(rewards)), key=rewards.__getitem__)]


def every_one(rewards: Sequence[float], rng: random.Random) -> list[int]:
    """All: the whole tree is grown, and what follows can rank the siblings."""
    return list(range(len(rewards)))


HANDOFFS: dict[str, Callable[[Sequence[float], random.Random], list[int]]] = {
    "random": one_at_random,
    "best": best,
    "all": every_one,
}
