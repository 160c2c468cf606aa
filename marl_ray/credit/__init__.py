"""From trees to weighted groups: returns, advantages, weights in the loss. Pure functions; no Ray, engine or sandbox.

trees (returns.py) -> returns of siblings (estimators.py) -> advantages (batches.py) -> weights in the loss
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
    },
)
"""An estimator takes returns [..., G] (a float64 tensor whose last dimension holds siblings) and gives advantages."""

__all__ = ["ESTIMATORS"]
