"""Difference rewards: the reward of a joint action less its reward without the agent's part.

Wolpert and Tumer (2002), "Optimal payoff functions for members of collectives". The contribution of the other agents
cancels.

On a whole tree (handoff `all`) these estimators apply to the last turn, whose rewards are final. In the turns before,
the reward without an agent would need a continuation of its own, so the baseline is the mean return of the siblings, as
in MAGRPO.
"""

from __future__ import annotations

from marl_ray.credit.estimators.base import Estimator, SiblingValues, Tensor, are_equal, difference, less_mean
from marl_ray.credit.requirements import Requirements


class DifferenceReward(Estimator):
    """A = D = R - R(without the agent). The setting `counterfactual` says what replaces its completion."""

    requirements = Requirements(
        counterfactual_sample=True, last_turn_rewards=True, parallel_agents=True, magrpo_if_one_baseline=True
    )

    def advantages(self, values: SiblingValues) -> Tensor:
        assert values.counterfactual_rewards is not None
        return difference(values.returns, values.counterfactual_rewards)


class CentredDifferenceReward(Estimator):
    """A = D - mean(D), whose mean over siblings has no influence on the gradient.

    A group in which all difference rewards are high has large raw advantages of one sign, and so a gradient of large
    variance.
    """

    requirements = Requirements(
        siblings=True,
        counterfactual_sample=True,
        last_turn_rewards=True,
        parallel_agents=True,
        magrpo_if_one_baseline=True,
    )

    def advantages(self, values: SiblingValues) -> Tensor:
        assert values.counterfactual_rewards is not None
        return centred_difference(values.returns, values.counterfactual_rewards)


class Shapley(Estimator):
    """A = S - mean(S), where S is the agent's Shapley value in the joint action: its mean marginal reward over all
    orders in which the agents may join (Shapley, 1953, "A value for n-person games"). Without siblings A = S."""

    requirements = Requirements(coalition_samples=True, last_turn_rewards=True, parallel_agents=True)

    def advantages(self, values: SiblingValues) -> Tensor:
        assert values.coalition_rewards is not None
        if values.returns.shape[-1] == 1:
            return difference(values.returns, values.coalition_rewards)
        return centred_difference(values.returns, values.coalition_rewards)


def centred_difference(returns: Tensor, baselines: Tensor) -> Tensor:
    """Return D - mean(D) with D = R - baseline; zeros where the differences D are equal up to rounding."""
    sizes = returns.abs().maximum(baselines.abs())
    differences = returns - baselines
    return less_mean(differences).masked_fill(are_equal(differences, sizes), 0.0)
