"""Which completions of the agents' groups make a node's joint actions.

A joint mode takes each agent's group size and gives index tuples: entry i is agent i's completion in its group.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence


def aligned(sizes: Sequence[int]) -> list[tuple[int, ...]]:
    """Joint action g is every agent's completion g: G of them."""
    return [(g,) * len(sizes) for g in range(min(sizes))]


def cross(sizes: Sequence[int]) -> list[tuple[int, ...]]:
    """Every combination: G^N of them."""
    return list(itertools.product(*map(range, sizes)))


JOINT_MODES: dict[str, Callable[[Sequence[int]], list[tuple[int, ...]]]] = {"aligned": aligned, "cross": cross}
