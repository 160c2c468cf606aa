"""Policies of the agents, and the policies that share a process."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

from marl_ray.config.agent_section import AgentConfig
from marl_ray.config.lora_section import LoraConfig
from marl_ray.core.ids import PolicyId

PolicyGroups = tuple[tuple[PolicyId, ...], ...]
"""All policies, grouped by process."""


def policies_of(agents: Sequence[AgentConfig]) -> tuple[PolicyId, ...]:
    """Return the policies of the agents, ordered by their first agents."""
    members: dict[int, tuple[int, ...]] = {}
    for number, agent in enumerate(agents):
        first = number if agent.policy is None else agent.policy
        members[first] = (*members.get(first, ()), number)
    return tuple(PolicyId(members[first]) for first in sorted(members))


def learner_groups(agents: Sequence[AgentConfig], lora: LoraConfig) -> PolicyGroups:
    """Return the policies by learner process: one per policy, unless `lora.share_base` joins them."""
    return _grouped(agents, lora.share_base, lambda agent: (agent.name, agent.learner))


def generator_groups(agents: Sequence[AgentConfig], lora: LoraConfig) -> PolicyGroups:
    """Return the policies by their generators: one group per policy, unless `lora.share_engine` joins them."""
    return _grouped(agents, lora.share_engine, lambda agent: (agent.name, agent.dtype, agent.generator))


def _grouped(agents: Sequence[AgentConfig], share: bool, key: Callable[[AgentConfig], Hashable]) -> PolicyGroups:
    """Return the policies one by one, or with `share` all policies of a key together."""
    groups: dict[Hashable, list[PolicyId]] = {}
    for policy in policies_of(agents):
        groups.setdefault(key(agents[policy.first_agent]) if share else policy, []).append(policy)
    return tuple(map(tuple, groups.values()))


def group_of(policy: PolicyId, groups: PolicyGroups) -> tuple[PolicyId, ...]:
    """Return the group that has `policy`."""
    return next(policies for policies in groups if policy in policies)
