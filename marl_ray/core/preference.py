"""Preferences between the joint actions of a node, from which policies learn in place of advantages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class JointPreference:
    """A joint action that is preferred to another one at the same node, by their indices. `margin` is the difference of
    their returns, or 1 if only the preference is known."""

    chosen: int
    rejected: int
    margin: float = 1.0


def preferences_by_return(returns: Sequence[float], count: int | None) -> list[JointPreference]:
    """Return the `count` pairs of joint actions whose returns differ most, largest difference first; None: all pairs
    with different returns. Differences have six digits after the point, so that rounding neither makes a pair of equal
    returns nor chooses between equal differences; pairs with equal ones stay in the order of the actions.

    >>> preferences_by_return([1.0, 3.0, 1.0], 1)
    [JointPreference(chosen=1, rejected=0, margin=2.0)]
    """
    pairs = []
    for chosen, higher in enumerate(returns):
        for rejected, lower in enumerate(returns):
            margin = round(higher - lower, 6)
            if margin > 0:
                pairs.append(JointPreference(chosen, rejected, margin))
    pairs.sort(key=lambda pair: -pair.margin)  # stable: pairs with equal margins keep their order
    return pairs[:count]
