"""Pass@k: Tang et al. (2025), "Optimizing language models for inference time objectives using reinforcement
learning"."""

from __future__ import annotations

from marl_ray.credit.estimators.base import Estimator, SiblingValues, Tensor, difference
from marl_ray.credit.requirements import Requirements


class PassAtK(Estimator):
    """A = max(R) - the second largest R for the best sibling, and 0 for all others.

    This is the leave-one-out estimate for the objective max(R) of k = G samples.
    """

    requirements = Requirements(siblings=True, own_scale=True)

    def advantages(self, values: SiblingValues) -> Tensor:
        """Return the advantages. Raises ValueError if G is 1."""
        returns = values.returns
        if returns.shape[-1] < 2:
            raise ValueError("pass_at_k needs at least 2 returns in a group")
        best, second = returns.topk(2, dim=-1).values.split(1, dim=-1)
        return difference(best, second) * (returns == best)
