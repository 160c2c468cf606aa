"""REINFORCE++: Hu et al. (2025), "REINFORCE++: stabilizing critic-free policy optimization with global advantage
normalization"."""

from __future__ import annotations

from marl_ray.credit.estimators.base import Estimator, SiblingValues, Tensor, whitened
from marl_ray.credit.requirements import Requirements


class ReinforcePlusPlus(Estimator):
    """A = (R - mean(R)) / std(R) over all completions of a batch, and not over siblings only.

    The paper normalises over tokens. All advantages of a task that is too easy are positive, and all of a task that is
    too hard are negative.
    """

    requirements = Requirements(
        whole_batch=True, equal_return_groups=True, fixed_returns=True, complete_returns=True, magrpo_if_whitened=True
    )

    def advantages(self, values: SiblingValues) -> Tensor:
        return whitened(values.returns)
