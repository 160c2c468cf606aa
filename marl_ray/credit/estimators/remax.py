"""ReMax: Li et al. (2024), "ReMax: a simple, effective, and efficient reinforcement learning method for aligning large
language models"."""

from __future__ import annotations

from marl_ray.credit.estimators.base import Estimator, SiblingValues, Tensor, difference
from marl_ray.credit.requirements import Requirements


class Remax(Estimator):
    """A = R - R(greedy), the reward of the joint action of all agents' greedy completions."""

    requirements = Requirements(
        greedy_sample=True, immediate_rewards=True, parallel_agents=True, magrpo_if_whitened=True
    )

    def advantages(self, values: SiblingValues) -> Tensor:
        assert values.greedy_rewards is not None
        return difference(values.returns, values.greedy_rewards)
