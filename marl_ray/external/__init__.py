"""External transition modes: what the agents read from the second turn on."""

from __future__ import annotations

from marl_ray.external.transition import ExternalTransition
from marl_ray.plugins import Registry

MODES = Registry(
    "external.mode",
    {
        "level_feedback": "marl_ray.external.modes:Feedback",
        "level_passed": "marl_ray.external.modes:Feedback",
        "passed": "marl_ray.external.modes:Feedback",
        "plain": "marl_ray.external.modes:Plain",
        "expert_edits": "marl_ray.external.modes:ExpertEdits",
    },
)

__all__ = ["ExternalTransition"]
