"""External transition modes: what the agents read from the second turn on."""

from __future__ import annotations

from marl_ray.external.transition import ExternalTransition

__all__ = ["ExternalTransition"]
