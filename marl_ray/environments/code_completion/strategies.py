"""Strategies: who writes which methods of a class. Each gives the agent (from 0) of every method, in the class's order.

They look at the class alone, so that a task is shared out in the same way in every episode.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from marl_ray.environments.code_completion.skeleton import MethodSlot

Strategy = Callable[[Sequence[MethodSlot], int], list[int]]


def param_count(slots: Sequence[MethodSlot], num_agents: int) -> list[int]:
    """By number of parameters, `self` or `cls` counted: those with one go to the first agent, those with two to the
    second, and so on; the last agent takes all that have more.

    CoMLRL's way with two agents. An agent may get nothing: then it is told so.
    """
    return [min(max(1, slot.parameters), num_agents) - 1 for slot in slots]


def round_robin(slots: Sequence[MethodSlot], num_agents: int) -> list[int]:
    """In turns, in the order of the class."""
    return [number % num_agents for number in range(len(slots))]


def balanced(slots: Sequence[MethodSlot], num_agents: int) -> list[int]:
    """By expected length: the longest first, each to the agent with least to write so far.

    Graham's LPT rule (SIAM J. Appl. Math. 17, 1969): the longest share is at most 4/3 of the best possible.
    """
    load = [0] * num_agents
    agents = [0] * len(slots)
    for number in sorted(range(len(slots)), key=lambda number: (-slots[number].length, number)):
        agents[number] = load.index(min(load))
        load[agents[number]] += slots[number].length
    return agents


STRATEGIES: dict[str, Strategy] = {"param_count": param_count, "round_robin": round_robin, "balanced": balanced}
"""By the value of `code_completion.strategy`."""


def shares(strategy: str, slots: Sequence[MethodSlot], num_agents: int) -> tuple[tuple[str, ...], ...]:
    """The names of each agent's methods, in the class's order."""
    agents = STRATEGIES[strategy](slots, num_agents)
    return tuple(
        tuple(slot.name for slot, owner in zip(slots, agents, strict=True) if owner == agent)
        for agent in range(num_agents)
    )
