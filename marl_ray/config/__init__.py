"""Typed settings of a run, and their conversion from and to YAML."""

from marl_ray.config.agent_section import AgentConfig
from marl_ray.config.algorithm_section import AlgorithmConfig, CreditConfig, OptimizerConfig
from marl_ray.config.keywords import ConfigSource, from_keywords
from marl_ray.config.loader import algorithm_of, from_tree, load, to_tree, to_yaml
from marl_ray.config.lora_section import LoraConfig
from marl_ray.config.resource_sections import Deadlines, GeneratorResources, LearnerResources
from marl_ray.config.schema import ALGORITHMS, Config
from marl_ray.config.sections import (
    ExternalConfig,
    JudgeConfig,
    ModelConfig,
    ModelKwargs,
)
from marl_ray.config.values import PositiveInt, Section, parse_overrides

__all__ = [
    "ALGORITHMS",
    "AgentConfig",
    "AlgorithmConfig",
    "Config",
    "ConfigSource",
    "CreditConfig",
    "Deadlines",
    "ExternalConfig",
    "GeneratorResources",
    "JudgeConfig",
    "LearnerResources",
    "LoraConfig",
    "ModelConfig",
    "ModelKwargs",
    "OptimizerConfig",
    "PositiveInt",
    "Section",
    "algorithm_of",
    "from_keywords",
    "from_tree",
    "load",
    "parse_overrides",
    "to_tree",
    "to_yaml",
]
