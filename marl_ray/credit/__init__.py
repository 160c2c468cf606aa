"""From trees to weighted groups: returns, advantages, weights in the loss. Pure functions; no Ray, engine or sandbox.

trees (returns.py, baselines.py) -> returns (estimators.py) -> advantages (batches.py) -> weights in the loss
"""

from __future__ import annotations

from marl_ray.plugins import Registry

ESTIMATORS = Registry(
    "estimator",
    {
        "magrpo": "marl_ray.credit.estimators:magrpo",
        "grpo": "marl_ray.credit.estimators:magrpo",
        "marloo": "marl_ray.credit.estimators:marloo",
        "maremax": "marl_ray.credit.estimators:maremax",
        "mareinforce": "marl_ray.credit.estimators:mareinforce",
        "remax": "marl_ray.credit.estimators:remax",
        "difference": "marl_ray.credit.estimators:difference",
        "reinforce_pp": "marl_ray.credit.estimators:reinforce_pp",
    },
)
"""An estimator takes returns [..., G] (a float64 tensor whose last dimension holds siblings) and gives advantages."""

BEYOND_SIBLINGS = {"remax": "greedy", "difference": "counterfactual", "reinforce_pp": "batch"}
"""Estimators that look at more than the siblings' returns, and at what: the reward of a greedy joint sample; the
rewards that the team had earned without the agent; all returns of the agent's batch. None of one's own does."""

__all__ = ["BEYOND_SIBLINGS", "ESTIMATORS"]
