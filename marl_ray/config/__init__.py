"""Typed settings and how they are read."""

from marl_ray.config.loading import from_tree, load, to_tree, to_yaml
from marl_ray.config.reading import parse_overrides
from marl_ray.config.schema import AgentConfig, Config, ModelConfig

__all__ = [
    "AgentConfig",
    "Config",
    "ModelConfig",
    "from_tree",
    "load",
    "parse_overrides",
    "to_tree",
    "to_yaml",
]
