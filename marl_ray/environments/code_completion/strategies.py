"""Strategies that assign the methods of a class to agents. Each returns one agent (from 0) per method, in source order.

A strategy depends only on the class, so the assignment of a task is the same in every episode.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from marl_ray.environments.code_completion.skeleton import MethodSlot

Strategy = Callable[[Sequence[MethodSlot], int], list[int]]


def param_count(slots: Sequence[MethodSlot], num_agents: int) -> list[int]:
    """Assign methods by number of parameters, including `self` or `cls`: one parameter to the first agent, two to the
    second, and so on, with all larger numbers to the last agent.

    This is CoMLRL's strategy for two agents. An agent without methods is told so.
    """
    return [min(max(1, slot.parameters), num_agents) - 1 for slot in slots]


def round_robin(slots: Sequence[MethodSlot], num_agents: int) -> list[int]:
    """Assign methods round-robin, in source order."""
    return [number % num_agents for number in range(len(slots))]


def balanced(slots: Sequence[MethodSlot], num_agents: int) -> list[int]:
    """Assign methods by expected length, longest first, each to the agent with the least to write so far.

    Graham's LPT rule (SIAM J. Appl. Math. 17, 1969): the longest share is at most 4/3 of the optimum.
    """
    load = [0] * num_agents
    agents = [0] * len(slots)
    for number in sorted(range(len(slots)), key=lambda number: (-slots[number].length, number)):
        agents[number] = load.index(min(load))
        load[agents[number]] += slots[number].length
    return agents


STRATEGIES: dict[str, Strategy] = {"param_count": param_count, "round_robin": round_robin, "balanced": balanced}
"""The strategies by their name in `code_completion.strategy`."""


def assign_methods(strategy: str, slots: Sequence[MethodSlot], num_agents: int) -> tuple[tuple[str, ...], ...]:
    """Return the names of each agent's methods, in source order."""
    agents = STRATEGIES[strategy](slots, num_agents)
    return tuple(
        tuple(slot.name for slot, owner in zip(slots, agents, strict=True) if owner == agent)
        for agent in range(num_agents)
    )
