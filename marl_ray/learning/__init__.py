"""Learners: losses, critics, optimizers, and everything else that needs gradients."""

from __future__ import annotations

from marl_ray.registry import Registry

OPTIMIZERS = Registry(
    "optimizer",
    {
        "adamw": "marl_ray.learning.optimizer:adamw",
        "adamw_8bit": "marl_ray.learning.optimizer:adamw_8bit",
        "adafactor": "marl_ray.learning.optimizer:adafactor",
    },
)
"""Functions from parameter groups and `OptimizerConfig` to a `torch.optim.Optimizer`, which learners import."""

__all__ = ["OPTIMIZERS"]
