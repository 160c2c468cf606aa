"""Typed settings and how they are read."""

from marl_ray.config.environments import CodeCompletionConfig, JudgeConfig
from marl_ray.config.loader import from_tree, load, to_tree, to_yaml
from marl_ray.config.optimization import CLIP_RANGES, CreditConfig, LoraConfig, OptimizerConfig
from marl_ray.config.parsing import parse_overrides
from marl_ray.config.resources import Deadlines, GeneratorResources, LearnerResources
from marl_ray.config.schema import ALGORITHMS, AgentConfig, Config, ExternalConfig, ModelConfig, ModelKwargs

__all__ = [
    "ALGORITHMS",
    "CLIP_RANGES",
    "AgentConfig",
    "CodeCompletionConfig",
    "Config",
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
    "from_tree",
    "load",
    "parse_overrides",
    "to_tree",
    "to_yaml",
]
