"""From episode trees to weighted groups: returns, advantages and weights in the loss. Pure functions; no Ray or vLLM.

trees --returns.py--> returns and baselines --estimators/--> advantages --groups.py--> weights and batches
"""

from __future__ import annotations

from marl_ray.registry import Registry

ESTIMATORS = Registry(
    "estimator",
    {
        "magrpo": "marl_ray.credit.estimators.magrpo:Magrpo",
        "grpo": "marl_ray.credit.estimators.magrpo:Magrpo",
        "marloo": "marl_ray.credit.estimators.magrpo:Marloo",
        "maremax": "marl_ray.credit.estimators.magrpo:Maremax",
        "mareinforce": "marl_ray.credit.estimators.magrpo:Mareinforce",
        "remax": "marl_ray.credit.estimators.remax:Remax",
        "difference": "marl_ray.credit.estimators.difference_rewards:DifferenceReward",
        "centred_difference": "marl_ray.credit.estimators.difference_rewards:CentredDifferenceReward",
        "shapley": "marl_ray.credit.estimators.difference_rewards:Shapley",
        "reinforce_pp": "marl_ray.credit.estimators.reinforce_pp:ReinforcePlusPlus",
        "opo": "marl_ray.credit.estimators.opo:Opo",
        "maxrl": "marl_ray.credit.estimators.maxrl:Maxrl",
        "pass_at_k": "marl_ray.credit.estimators.pass_at_k:PassAtK",
        "gdpo": "marl_ray.credit.estimators.gdpo:Gdpo",
        "madpo": "marl_ray.credit.estimators.madpo:Madpo",
        "distillation": "marl_ray.credit.estimators.distillation:Distillation",
    },
    method="advantages",
)
"""Subclasses of `marl_ray.credit.estimators.base.Estimator`, or functions from returns [..., G], a float64 tensor whose
last dimension holds siblings, to advantages of that shape."""

CRITICS = Registry(
    "critic",
    {
        "none": "marl_ray.learning.critic:no_critic",
        "iac": "marl_ray.learning.critic:independent_critic",
        "maac": "marl_ray.learning.critic:central_critic",
    },
)
"""Functions with the arguments of `marl_ray.learning.critic.make_critic` that return a `Critic`, which learners import.
"""

__all__ = ["CRITICS", "ESTIMATORS"]
