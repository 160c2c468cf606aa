"""MaxRL: Tajwar et al. (2026), "Maximum likelihood reinforcement learning"."""

from __future__ import annotations

from marl_ray.credit.estimators.base import Estimator, SiblingValues, Tensor, zero_if_equal
from marl_ray.credit.requirements import Requirements


class Maxrl(Estimator):
    """A = (R - mean(R)) / mean(R), and 0 for groups whose mean is not positive.

    For rewards of 0 and 1 the gradient is that of the log-probability p of success, log p = - sum of (1 - p)^k / k, up
    to k = G - 1, so that a task counts for more, the fewer siblings solve it.
    """

    requirements = Requirements(siblings=True, magrpo_if_whitened=True)

    def advantages(self, values: SiblingValues) -> Tensor:
        returns = values.returns
        mean = returns.mean(dim=-1, keepdim=True)
        relative = ((returns - mean) / mean).where(mean > 0, 0.0)
        return zero_if_equal(relative, returns)
