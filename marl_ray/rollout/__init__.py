"""Rollouts: episodes, the joint actions of a turn, and the handoff to the next turn."""

from __future__ import annotations

from marl_ray.registry import Registry

JOINT_MODES = Registry(
    "joint_mode", {"aligned": "marl_ray.rollout.turn:aligned", "cross": "marl_ray.rollout.turn:cross"}
)
"""Functions from the size of each agent's group to joint actions, one index per agent."""
HANDOFFS = Registry(
    "handoff",
    {
        "random": "marl_ray.rollout.turn:one_at_random",
        "best": "marl_ray.rollout.turn:best",
        "visible": "marl_ray.rollout.turn:one_of_the_best",
        "all": "marl_ray.rollout.turn:every_one",
    },
)
"""Functions from the joint actions' rewards and the node's random stream to the joint action to continue, in a list.
With `visible` the rewards are 1 for joint actions that pass the visible tests, and 0 for others. Only `all` continues
several, so that an episode is a tree."""

__all__ = ["HANDOFFS", "JOINT_MODES"]
