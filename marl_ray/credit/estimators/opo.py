"""OPO: Hao et al. (2025), "On-policy RL with optimal reward baseline"."""

from __future__ import annotations

from marl_ray.credit.estimators.base import Estimator, SiblingValues, Tensor, zero_if_equal
from marl_ray.credit.requirements import Requirements


class Opo(Estimator):
    """A = R - sum(length * R) / sum(length), with the lengths of the siblings in tokens.

    This is the baseline of least gradient variance if the squared norm of a completion's gradient grows in proportion
    to its length.
    """

    requirements = Requirements(siblings=True, lengths=True, magrpo_if_whitened=True)

    def advantages(self, values: SiblingValues) -> Tensor:
        returns, lengths = values.returns, values.lengths
        assert lengths is not None
        baseline = (lengths * returns).sum(dim=-1, keepdim=True) / lengths.sum(dim=-1, keepdim=True)
        return zero_if_equal(returns - baseline, returns)
