"""GDPO: Liu et al. (2026), "GDPO: group reward-decoupled normalization policy optimization for multi-reward RL
optimization"."""

from __future__ import annotations

from marl_ray.credit.estimators.base import EPSILON, Estimator, SiblingValues, Tensor
from marl_ray.credit.requirements import Requirements


class Gdpo(Estimator):
    """A = S / root mean square of S over the batch, where S is the sum of a reward's levels, each normalised within the
    group. The sums have mean 0 in every group."""

    requirements = Requirements(
        siblings=True,
        reward_levels=True,
        whole_batch=True,
        equal_return_groups=True,
        fixed_returns=True,
        complete_returns=True,
        own_scale=True,
    )

    def advantages(self, values: SiblingValues) -> Tensor:
        levels = values.levels
        assert levels is not None
        size = levels.square().mean(dim=-1, keepdim=True).sqrt()
        return levels / (size + EPSILON)
