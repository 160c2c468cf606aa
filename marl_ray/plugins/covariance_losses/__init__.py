"""Losses that keep entropy: no gradient, or a penalty, for the few tokens of the highest covariance."""

from marl_ray.registry import PlugIn

PLUGIN = PlugIn(
    names={
        "loss": {
            "clip_cov": "marl_ray.plugins.covariance_losses.clip_cov:DroppedCovariances",
            "kl_cov": "marl_ray.plugins.covariance_losses.kl_cov:PenalizedCovariances",
        },
    },
)
