"""Selecting joint actions: which completions form a node's joint actions, and which joint actions are expanded."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence


def aligned(sizes: Sequence[int]) -> list[tuple[int, ...]]:
    """Return G joint actions: joint action g consists of every agent's completion g."""
    return [(g,) * len(sizes) for g in range(min(sizes))]


def cross(sizes: Sequence[int]) -> list[tuple[int, ...]]:
    """Return all G^N combinations of completions."""
    return list(itertools.product(*map(range, sizes)))


JOINT_MODES: dict[str, Callable[[Sequence[int]], list[tuple[int, ...]]]] = {"aligned": aligned, "cross": cross}
"""Joint modes by name. They take each agent's group size and return index tuples: entry i is agent i's completion."""


def one_at_random(rewards: Sequence[float], rng: random.Random) -> list[int]:
    """Return the index of one joint action, drawn uniformly."""
    return [rng.randrange(len(rewards))]


def best(rewards: Sequence[float], rng: random.Random) -> list[int]:
    """Return the index of the highest reward, the first of equal rewards."""
    return [max(range(len(rewards)), key=rewards.__getitem__)]


def every_one(rewards: Sequence[float], rng: random.Random) -> list[int]:
    """Return all indices: the whole tree is grown, and the returns of continuations rank the siblings."""
    return list(range(len(rewards)))


HANDOFFS: dict[str, Callable[[Sequence[float], random.Random], list[int]]] = {
    "random": one_at_random,
    "best": best,
    "all": every_one,
}
"""Handoffs by name. They take the rewards and the node's random stream, and return the joint actions to expand."""
