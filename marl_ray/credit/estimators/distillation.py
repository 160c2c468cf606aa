"""On-policy distillation: Agarwal et al. (2024), "On-policy distillation of language models: learning from
self-generated mistakes"."""

from __future__ import annotations

from marl_ray.credit.estimators.base import Estimator, SiblingValues, Tensor
from marl_ray.credit.requirements import Requirements


class Distillation(Estimator):
    """A = 0, so that the divergence from the reference policy is the only gradient.

    `reference_kl: k2_in_loss` gives the reverse KL divergence of Gu et al. (2024), "MiniLLM: knowledge distillation of
    large language models".
    """

    requirements = Requirements(reference=True, fixed_returns=True, equal_return_groups=True, own_scale=True)

    def advantages(self, values: SiblingValues) -> Tensor:
        return values.returns.new_zeros(values.returns.shape)
