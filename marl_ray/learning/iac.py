"""Independent actor-critic: an agent's critic reads what the agent itself reads, through the policy's own layers.

As in CoMLRL 1.4 without a separate critic: a value head on the actor, and one loss, the policy's plus the critic's, for
the weights that both have. The head alone has an optimizer of its own.
"""

from __future__ import annotations

from marl_ray.config import AgentConfig, CreditConfig, OptimizerConfig
from marl_ray.learning.critic import Critic
from marl_ray.learning.policy_model import LogprobModel


def own_critic(
    policy: LogprobModel, agent: AgentConfig, credit: CreditConfig, settings: OptimizerConfig, total_steps: int
) -> Critic:
    """A value head on `policy`."""
    return Critic(policy, False, agent, credit, settings, total_steps)
