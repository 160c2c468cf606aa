"""Typed settings of a run, and their conversion from and to YAML."""

from marl_ray.config.loader import from_tree, load, to_tree, to_yaml
from marl_ray.config.optimization import CLIP_RANGES, CreditConfig, LoraConfig, OptimizerConfig
from marl_ray.config.parsing import parse_overrides
from marl_ray.config.resources import Deadlines, GeneratorResources, LearnerResources
from marl_ray.config.schema import ALGORITHMS, AgentConfig, Config
from marl_ray.config.sections import CodeCompletionConfig, ExternalConfig, JudgeConfig, ModelConfig, ModelKwargs

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
