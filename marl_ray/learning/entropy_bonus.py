"""Weights of the entropy bonus, which is added to the loss of any kind: -coefficient * share * sum of entropies.

The bonus is that of A3C (Mnih et al., 2016, "Asynchronous methods for deep reinforcement learning"), with the exact
entropy of each sampled token's distribution.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from marl_ray.config import AgentConfig, CreditConfig, OptimizerConfig
from marl_ray.core.batch import Group
from marl_ray.credit.groups import group_shares


def of_group(agent: AgentConfig, group: Group, max_new_tokens: Mapping[int, int]) -> AgentConfig:
    """Return the settings of a policy's first agent with the maximum length of the group's own agent, which is part of
    the loss with `loss_aggregation: constant`."""
    return replace(agent, max_new_tokens=max_new_tokens.get(group.agent, agent.max_new_tokens))


def entropy_weights(
    group: Group, agent: AgentConfig, credit: CreditConfig, settings: OptimizerConfig
) -> tuple[float, ...]:
    """Return the factor of each completion's summed entropies, [G]: 0 without a bonus and for masked completions."""
    if not settings.entropy_coef:
        return (0.0,) * len(group.completions)
    return tuple(settings.entropy_coef * share for share in group_shares(group, agent, credit))
