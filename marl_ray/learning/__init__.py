"""Learners: losses, critics, optimizers, and everything else that needs gradients."""

from __future__ import annotations

from marl_ray.registry import Registry

LOSSES = Registry(
    "loss",
    {
        "policy_gradient": "marl_ray.learning.losses.policy_gradient:PolicyGradient",
        "clip": "marl_ray.learning.losses.clip:TokenClip",
        "gspo": "marl_ray.learning.losses.gspo:SequenceClip",
        "m2po": "marl_ray.learning.losses.m2po:SecondMoment",
        "cispo": "marl_ray.learning.losses.cispo:ClippedWeights",
        "sapo": "marl_ray.learning.losses.sapo:SoftGate",
        "gmpo": "marl_ray.learning.losses.gmpo:GeometricMean",
        "dppo": "marl_ray.learning.losses.dppo:TotalVariation",
        "dppo_kl": "marl_ray.learning.losses.dppo_kl:BinaryDivergence",
    },
    member="token_loss",
)
"""Subclasses of `marl_ray.learning.losses.policy_loss.PolicyLoss`."""
OPTIMIZERS = Registry(
    "optimizer",
    {
        "adamw": "marl_ray.learning.optimizer:adamw",
        "adamw_8bit": "marl_ray.learning.optimizer:adamw_8bit",
        "adafactor": "marl_ray.learning.optimizer:adafactor",
    },
)
"""Functions from parameter groups and `OptimizerConfig` to a `torch.optim.Optimizer`, which learners import."""

__all__ = ["LOSSES", "OPTIMIZERS"]
