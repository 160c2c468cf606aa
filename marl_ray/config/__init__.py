"""Typed settings and how they are read."""

from marl_ray.config.loading import ConfigError, from_tree, load, parse_overrides, to_tree, to_yaml
from marl_ray.config.schema import AlgorithmConfig, Config, ModelConfig

__all__ = [
    "AlgorithmConfig",
    "Config",
    "ConfigError",
    "ModelConfig",
    "from_tree",
    "load",
    "parse_overrides",
    "to_tree",
    "to_yaml",
]
