"""MADPO of CoMLRL 1.4.3: direct preference optimization of the joint policy, divided among its agents.

`marl_ray.credit.preferences` has the loss, its gradient and the settings `preference_pairs` and `preference_beta`.
"""

from __future__ import annotations

from marl_ray.credit.estimators.base import Estimator, SiblingValues, Tensor
from marl_ray.credit.requirements import Requirements


class Madpo(Estimator):
    """A = the weight of a completion in the preferences between the siblings."""

    requirements = Requirements(siblings=True, joint_logprobs=True, fixed_returns=True, own_scale=True)

    def advantages(self, values: SiblingValues) -> Tensor:
        assert values.preferences is not None
        return values.preferences.clone()
