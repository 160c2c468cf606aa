"""The resolved settings of a run: typed, frozen and complete.

The path of an attribute is the key of the setting in a YAML file: `config.magrpo.num_turns`,
`config.agents[1].temperature`, `config.travel.wishes`. Code that serves both algorithms reads the section `magrpo` or
`grpo` as `config.training`. `marl-ray explain KEY` and docs/reference/config.md show the docstrings of the fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from marl_ray.config import sections
from marl_ray.config.agent_section import AgentConfig
from marl_ray.config.algorithm_section import AlgorithmConfig, Importance
from marl_ray.config.lora_section import LoraConfig
from marl_ray.config.policies import PolicyGroups, generator_groups, group_of, learner_groups, policies_of
from marl_ray.config.resource_sections import ResourcesConfig
from marl_ray.config.values import Derived, OrDefault, Section
from marl_ray.core.ids import PolicyId
from marl_ray.learning.losses import loss_class

ALGORITHMS = ("magrpo", "grpo")
SectionT = TypeVar("SectionT", bound=Section)


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(Section):
    """All settings of a run."""

    algorithm: Literal["magrpo", "grpo"] = "magrpo"
    """Name of the section for rollouts and learning. grpo trains a single agent."""
    seed: int = 42
    """Seed of all random streams."""
    environment: Derived[str] = "code_generation"
    """Environment, which defines roles, prompts, rewards and feedback texts. null: the environment of dataset.type."""
    agents: Derived[tuple[AgentConfig, ...]] = ()
    """One entry per agent: the name of its model or a mapping of its own settings. null: all agents are alike."""
    compat: OrDefault[str] = "none"
    """Defaults that reproduce another program, for settings of sampling and credit that the file omits. comlrl: CoMLRL
    1.4.3; docs/explanation/estimators.md lists the remaining differences. none: marl_ray's own defaults."""
    model: sections.ModelConfig = field(default_factory=sections.ModelConfig)
    dataset: sections.DatasetConfig = field(default_factory=sections.DatasetConfig)
    output: sections.OutputConfig = field(default_factory=sections.OutputConfig)
    external: sections.ExternalConfig = field(default_factory=sections.ExternalConfig)
    training: AlgorithmConfig = field(default_factory=AlgorithmConfig)
    """The section `magrpo` or `grpo`."""
    lora: LoraConfig = field(default_factory=LoraConfig)
    reward_processor: sections.RewardProcessorConfig = field(default_factory=sections.RewardProcessorConfig)
    sandbox: sections.SandboxConfig = field(default_factory=sections.SandboxConfig)
    code_generation: sections.CodeGenerationConfig = field(default_factory=sections.CodeGenerationConfig)
    judge: sections.JudgeConfig = field(default_factory=sections.JudgeConfig)
    resources: ResourcesConfig = field(default_factory=ResourcesConfig)
    plugins: tuple[str, ...] = ()
    """Modules with plug-ins of your own, such as [my_environment]: each has a `PLUGIN` (docs/how-to/extend.md).
    Plug-ins of installed packages need no mention."""
    plugin_sections: Mapping[str, Any] = field(default_factory=dict)
    """Sections of plug-ins by key. `config.travel` is `config.plugin_sections["travel"]`."""

    def __getattr__(self, name: str) -> Section:
        if name == "plugin_sections":  # a copy that has no fields yet
            raise AttributeError(name)
        if name == self.algorithm:
            return self.training
        if name not in self.plugin_sections:
            raise AttributeError(f"the config has no section {name!r}")
        section: Section = self.plugin_sections[name]
        return section

    def section(self, cls: type[SectionT]) -> SectionT:
        """Return the section of a plug-in by its class; its defaults if the config has none."""
        for section in self.plugin_sections.values():
            if isinstance(section, cls):
                return section
        return cls()

    @property
    def importance(self) -> Importance:
        """Resolved value of `magrpo.importance`."""
        if self.training.importance != "auto":
            return self.training.importance
        if loss_class(self.training.loss).requirements.own_importance_ratio:
            return "none"
        # Only then does the sampling policy differ from the one that learns.
        if self.truncates_sampling or self.training.max_staleness:
            return "truncate"
        return "none"

    @property
    def truncates_sampling(self) -> bool:
        """Whether top_p, top_k or min_new_tokens exclude tokens that the policy gives a probability."""
        for agent in self.agents:
            if agent.top_p < 1 or agent.min_new_tokens > 0:
                return True
        return self.model.top_k is not None

    @property
    def num_agents(self) -> int:
        """Number of agents."""
        return len(self.agents)

    @property
    def team_size(self) -> int:
        """Number of agents, without the ones that a plug-in's section adds to the team."""
        size = self.num_agents
        for section in self.plugin_sections.values():
            size -= section.added_agents
        return size

    @property
    def policies(self) -> tuple[PolicyId, ...]:
        """Policies of the run, ordered by their first agents."""
        return policies_of(self.agents)

    @property
    def learning_policies(self) -> tuple[PolicyId, ...]:
        """Policies that learn: the first agent's learning_rate is not 0."""
        return tuple(policy for policy in self.policies if self.agents[policy.first_agent].learning_rate > 0)

    @property
    def learner_groups(self) -> PolicyGroups:
        """Policies grouped by learner process: one per policy, unless `lora.share_base` joins them."""
        return learner_groups(self.agents, self.lora)

    @property
    def generator_groups(self) -> PolicyGroups:
        """Policies grouped by their generators: one per policy, unless `lora.share_engine` joins them."""
        return generator_groups(self.agents, self.lora)

    def to_yaml(self) -> str:
        """Return the config as the text of a YAML file."""
        from marl_ray.config.loader import to_yaml  # which imports this module

        return to_yaml(self)

    def learner_policies(self, policy: PolicyId) -> tuple[PolicyId, ...]:
        """Return the policies in the learner process of `policy`, including `policy`."""
        return group_of(policy, self.learner_groups)

    def generator_policies(self, policy: PolicyId) -> tuple[PolicyId, ...]:
        """Return the policies that use the generators of `policy`, including `policy`. The first one has them."""
        return group_of(policy, self.generator_groups)

    def policy_of(self, agent: int) -> PolicyId:
        """Return the policy of an agent."""
        return next(policy for policy in self.policies if agent in policy.agents)
