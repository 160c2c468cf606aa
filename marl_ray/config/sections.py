"""Sections of a config: models, tasks, rollouts, evaluation, outputs, and resources of the cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from marl_ray.config.agent_section import AgentModel, Dtype
from marl_ray.config.values import (
    Derived,
    NonNegativeInt,
    OrDefault,
    Port,
    PositiveFloat,
    PositiveInt,
    Section,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelKwargs(Section):
    """Options for loading the weights."""

    torch_dtype: Dtype = "auto"
    """Data type of the engine's weights. auto: bfloat16 on a GPU, float32 on a CPU. The learner keeps a float32 copy
    and computes in this type on a GPU, and in bfloat16 on a CPU with matrix units for it (AMX)."""
    trust_remote_code: bool = False
    """Allow code from the model's folder to run."""


@dataclass(frozen=True, kw_only=True)
class ModelConfig(AgentModel):
    """Models of the agents and their sampling."""

    type: str | None = None
    """Label for documentation only (null: no label). It has no effect."""
    top_k: PositiveInt | None = None
    """Number of most likely tokens to sample from. null, 0 or -1: all tokens."""
    max_length: Derived[int] = 2048
    """Maximum length of a prompt and its completion together, in tokens. null: 2048, or fewer if a model on this
    machine has fewer positions."""
    use_chat_template: bool | None = None
    """Apply the tokenizer's chat template to prompts. null: only for chat models, that is models that stop where the
    template ends an answer; base models receive plain text. The start of a run prints the choice for each agent."""
    template_date: str | None = None
    """Date (YYYY-MM-DD) for chat templates that print the current date, so that prompts are equal on each day of a run.
    null: the day on which the run starts, which is stored with the run."""
    tokenizer_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Arguments for `AutoTokenizer.from_pretrained`. `trust_remote_code` is the same setting as in model_kwargs."""
    special_tokens: Mapping[str, str | tuple[str, ...]] = field(default_factory=dict)
    """Arguments for `tokenizer.add_special_tokens`, such as a list `additional_special_tokens`, all in the
    vocabulary."""
    model_kwargs: ModelKwargs = field(default_factory=ModelKwargs)


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetConfig(Section):
    """Training and evaluation tasks."""

    name: str = ""
    """Hub id (`owner/name`, or `owner/name:part`), a .jsonl, .parquet, .json or .csv file, a bundled set, or
    `python:module:Attr`, an object whose `splits` has rows by split (the default if `environment` is one)."""
    type: Derived[str] = ""
    """Name of the conversion from a row to a task. null: inferred from the name."""
    train_split: str = "train"
    """Split to train on, or a slice of a split such as `test[33:163]`."""
    eval_split: str | None = None
    """Split or slice to evaluate on. null: no evaluation."""
    sampler: Literal["shuffle", "sequential"] | str = "shuffle"
    """Order of the training tasks in each epoch. shuffle: a new random order per epoch; sequential: the order of the
    dataset."""
    on_bad_row: Literal["skip", "error"] = "skip"
    """Treatment of a row that cannot be read and repaired, such as one without tests. skip: leave the row out with a
    warning, and fail if there are more than 5 % of the dataset's rows (before slicing); error: fail at the first.
    Rows of a kind that the type does not support, such as functions for `apps`, do not count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExternalConfig(Section):
    """Feedback that agents receive between two turns."""

    mode: str = "level_feedback"
    """Kind of feedback and its wording."""
    composition: Literal["prompt", "chat"] = "prompt"
    """Composition of the prompts of later turns. prompt: a new prompt with the parts that the settings below select;
    chat: the conversation so far, token by token as it was sampled, and a message with feedback and instruction."""
    sandbox_slice: int | Literal["all"] = 1
    """Tests that feedback may mention: the first N, or the last N if negative. 0, null or all: every test."""
    original_prompt: bool = False
    """Repeat the prompt of the first turn."""
    previous_response: bool = True
    """Show an agent its own previous answer."""
    stop: Literal["never", "visible", "all"] = "never"
    """End a branch after a joint action that passes its tests, in training and in evaluations. visible: the tests in
    sandbox_slice, which feedback may mention; all: all tests, so that the end of an episode tells more than its
    feedback; never: play every turn. The stopped joint action keeps its reward in the remaining turns."""
    expert_model: str | None = None
    """Model that writes the edits of mode expert_edits; its name selects the vendor (`marl_ray.external.endpoints`).
    null: none."""
    expert_base_url: str | None = None
    """Endpoint of the expert, such as http://localhost:8000/v1. null: the vendor's address, or OPENAI_BASE_URL."""
    expert_timeout_s: PositiveFloat = 60.0
    """Timeout of one request in seconds."""
    expert_retries: NonNegativeInt = 3
    """Retries after a failed request. When all of them fail, the agents continue without an edit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardProcessorConfig(Section):
    """Affine transformation of the environment's reward."""

    enabled: bool = True
    """Apply the transformation."""
    scale_factor: OrDefault[float] = 1.0
    """Factor applied to the reward. Must not be 0."""
    shift: OrDefault[float] = 0.0
    """Value added to the reward after scaling. `reward_shift` is an alias."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxConfig(Section):
    """Execution of programs written by models."""

    isolation: Literal["auto", "bwrap", "process", "none"] = "auto"
    """Isolation level of a program. auto: the strongest level this machine supports."""
    require: Literal["process", "process+landlock", "bwrap"] | None = None
    """Minimum isolation level; the run fails below it. null: no minimum."""
    allow_unsafe: bool = False
    """Allow isolation none."""
    test_timeout_s: PositiveFloat = 10.0
    """CPU time limit of a test in seconds."""
    program_timeout_s: PositiveFloat | None = None
    """Wall-clock limit for all tests of a program in seconds, after which tests count as failed; raise it for many or
    slow tests. null: 6 * test_timeout_s."""
    max_timeouts: PositiveInt = 3
    """Number of timeouts after which the remaining tests of a program are skipped."""
    memory_mb: PositiveInt = 512
    """Memory limit of a program in MiB."""
    scratch_mb: NonNegativeInt = 0
    """Limit in MiB for files that a program writes to its working directory, which starts empty. 0: no files. Requires
    Landlock as of Linux 6.2 wherever sandbox workers run; isolation levels without Landlock are rejected."""
    packages: tuple[str, ...] = ()
    """Installed packages that programs may import in addition to the standard library, such as [numpy, PIL], together
    with their dependencies. They are preloaded read-only and must be installed wherever sandbox workers run."""
    count_untrusted: bool = False
    """Count passes that a program could have forged in the reward: passes of tests that must run beside the program
    (tests that pass functions to the program, need its classes or read its files) or that compare the program's own
    objects with each other. With isolation none, all passes are of this kind. A task whose tests are all of this kind
    earns nothing for them by default; a warning names the first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeGenerationConfig(Section):
    """Environment code_generation: agents write the functions of one program."""

    helper_reward: Literal["executed", "static"] = "executed"
    """Condition for the levels of helper use. executed: the tests show that main needs the helper and adds something to
    it, at up to eight more executions per helper for each distinct program that passes a test and calls the helper. The
    levels are paid times the share of passed tests, and a program that fails a test earns less than a right one without
    a helper; static: main's text calls the helper and is no thin wrapper, as in CoMLRL."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeConfig(Section):
    """Model that scores answers, for environments that use an LLM judge (`marl_ray.external.llm_judge`)."""

    model: str | None = None
    """Name of the model on its server. null: no judge."""
    base_url: str | None = None
    """OpenAI-compatible endpoint, such as http://localhost:8000/v1. null: OpenAI's own."""
    key_variable: str = "JUDGE_API_KEY"
    """Environment variable that holds the API key. Only the driver process reads it."""
    timeout_s: PositiveFloat = 60.0
    """Timeout of one request in seconds."""
    retries: NonNegativeInt = 3
    """Retries after a temporary server error. When all of them fail, there is no verdict."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputConfig(Section):
    """Run folder and checkpoints."""

    base_dir: str = "runs"
    """Parent folder of all runs. On a cluster, every node must be able to access it."""
    run_name: str | None = None
    """Folder of this run below base_dir. null: generated from the algorithm, the dataset and the time."""
    save_final_model: bool = True
    """Write each agent's model to models/agent_<i> at the end of the run (models/policy_<i> for a shared policy)."""
    keep_checkpoints: PositiveInt = 2
    """Number of checkpoints to keep. Older ones are deleted."""
    keep_batches: bool = False
    """Keep the batches of all steps in batches/ for `marl-ray replay`. false: only those since the oldest kept
    checkpoint."""
    resume: Literal["never", "auto"] = "never"
    """Behaviour if the run folder exists. auto: resume the run, such as after a requeue by a scheduler; never: fail."""
    episodes_per_step: NonNegativeInt = 2
    """Episodes per step that are written to episodes.jsonl with all texts."""
    probe_helpers: Literal["off", "eval", "always"] = "off"
    """Measure the value of helpers (metrics helper_needed and helper_suffices), at evaluations or at every step, by up
    to eight more executions per helper for each distinct program that passes a test and calls the helper. With
    code_generation.helper_reward executed, they are always measured."""
    measure_cooperation: Literal["free", "eval", "always"] = "free"
    """Recombination of the answers of turn 1, for the metrics cooperation/*. free: only measures whose rewards are
    known without an execution; eval: also execute recombined programs at evaluations; always: at every step too."""
    tensorboard: bool = False
    """Write all metrics to tensorboard/ in the run folder. Requires the package tensorboard."""
    sinks: tuple[str, ...] = ()
    """Further trackers of metrics, such as [mlflow, module:Attr] (docs/reference/plugins.md). A tracker that fails does
    not affect the run."""
    prometheus_port: Port | None = None
    """Port at which metrics are served in Prometheus' text format, at `/metrics`. null: none."""
    prometheus_host: str = "127.0.0.1"
    """Address on which that port is open. The default is reachable from this machine only; 0.0.0.0 is from all."""
    verbose: bool = False
    """Show the logs of Ray and vLLM."""
