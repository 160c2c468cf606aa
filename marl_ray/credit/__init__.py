"""From episode trees to weighted groups: returns, advantages and weights in the loss. Pure functions; no Ray or vLLM.

trees --returns.py--> returns and baselines --estimators.py--> advantages --groups.py--> weights and batches
"""

from __future__ import annotations

from marl_ray.registry import Registry

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
        "centred_difference": "marl_ray.credit.estimators:centred_difference",
        "shapley": "marl_ray.credit.estimators:centred_difference",
        "reinforce_pp": "marl_ray.credit.estimators:reinforce_pp",
        "opo": "marl_ray.credit.estimators:opo",
        "maxrl": "marl_ray.credit.estimators:maxrl",
        "pass_at_k": "marl_ray.credit.estimators:pass_at_k",
        "gdpo": "marl_ray.credit.estimators:gdpo",
        "madpo": "marl_ray.credit.estimators:madpo",
        "distillation": "marl_ray.credit.estimators:distillation",
    },
)
"""Functions from returns [..., G], a float64 tensor whose last dimension holds siblings, to advantages of that shape.
Further inputs are declared in `marl_ray.credit.requirements`."""

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
