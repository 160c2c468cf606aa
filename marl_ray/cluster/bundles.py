"""Bundles of resources, and their places on the nodes of a cluster. Arithmetic without Ray."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from marl_ray.core.ids import ActorId

ROUNDING = 1e-9
"""Tolerance for sums of fractions of a GPU, such as three thirds."""


@dataclass(frozen=True, slots=True)
class Bundle:
    """One bundle of the placement group, and the actors that share it."""

    actors: tuple[ActorId, ...]
    cpus: float
    gpus: float

    def resources(self) -> dict[str, float]:
        """Return CPUs and GPUs under Ray's resource names."""
        resources = {"CPU": self.cpus}
        if self.gpus:
            resources["GPU"] = self.gpus
        return resources


def pack(bundles: Sequence[Bundle], nodes: Sequence[Mapping[str, float]]) -> list[int] | None:
    """Return the node of each bundle by first fit, largest first, like Ray's PACK; None if a bundle does not fit.

    Example:
        >>> pack([Bundle((), 1, 0), Bundle((), 4, 0)], [{"CPU": 4}, {"CPU": 2}])
        [1, 0]
    """
    free = list(map(dict, nodes))
    assignment = [0] * len(bundles)
    largest_first = sorted(enumerate(bundles), key=lambda pair: (pair[1].gpus, pair[1].cpus), reverse=True)
    for number, bundle in largest_first:
        needed = bundle.resources()
        index = next((index for index, node in enumerate(free) if _has_room(node, needed)), None)
        if index is None:
            return None
        assignment[number] = index
        for kind, amount in needed.items():
            free[index][kind] -= amount
    return assignment


def _has_room(free: Mapping[str, float], needed: Mapping[str, float]) -> bool:
    return all(free.get(kind, 0.0) + ROUNDING >= amount for kind, amount in needed.items())
