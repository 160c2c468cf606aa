"""Multi-agent actor-critic: a central critic reads what all agents read, through a model of its own.

It is there in training alone; agents act on what they see themselves. CoMLRL 1.4 has one critic, which each agent's
update moves in its turn. Here each learner has one, so that it remains a function of its agent's batches: the critics
start alike and see the same states, and where agents share one reward the same targets too.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from marl_ray.config import AgentConfig, CreditConfig, OptimizerConfig
from marl_ray.learning.critic import Critic
from marl_ray.learning.policy_model import LogprobModel


def central_critic(
    body: Any,
    policy: LogprobModel,
    agent: AgentConfig,
    credit: CreditConfig,
    settings: OptimizerConfig,
    total_steps: int,
) -> Critic:
    """A value head on `body`, a model that starts as the agent's own does, and is computed in the same way."""
    body.set_attn_implementation(policy.model.config._attn_implementation)
    if settings.gradient_checkpointing:
        body.gradient_checkpointing_enable()
    return Critic(replace(policy, model=body), True, agent, credit, settings, total_steps)
