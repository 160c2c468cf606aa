"""The former module of `marl_ray.learning.losses.policy_loss`, from which plug-ins may import."""

from marl_ray.learning.losses.policy_loss import LossRatios, LossTokens, PolicyLoss

__all__ = ["LossRatios", "LossTokens", "PolicyLoss"]
