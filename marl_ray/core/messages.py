"""The messages that travel between rollout, sandbox and learners.

A run is a cooperative Dec-POMDP: agent i sees only its own prompts (observations) and its own past
responses (history); the tuple of all agents' completions is the joint action; the sandbox's verdict on the
joint program gives one reward that all agents share.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from marl_ray.sandbox import ExecutionReport

WeightVersion = int
"""Counts the steps an agent has done: 0 is the base model. A step without a gradient has a version too."""


@dataclass(frozen=True, slots=True)
class Task:
    """One problem. `tests` is a source with `check(candidate)`, or a tuple of assert lines."""

    id: str
    prompt: str
    entry_point: str
    tests: str | tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Completion:
    """One sampled response of one agent.

    `token_ids` are the sampled ids, a final EOS kept and nothing after it; `logprobs` are the behaviour
    log-probabilities of those ids under the distribution they were drawn from (temperature, top-p and top-k
    applied), same length. `weight_version` is the oldest version that produced a token.
    """

    token_ids: tuple[int, ...]
    text: str
    logprobs: tuple[float, ...]
    finish_reason: str
    weight_version: WeightVersion


@dataclass(frozen=True, slots=True)
class Assessment:
    """What the environment makes of one joint action, from one execution.

    `levels` are the parts the reward is the sum of; `metrics` are means to be logged (0 or 1 for flags).
    """

    reward: float
    levels: dict[str, float]
    metrics: dict[str, float]


@dataclass(frozen=True, slots=True)
class JointAction:
    """One joint action at a node: `indices[i]` is agent i's completion in its group."""

    indices: tuple[int, ...]
    report: ExecutionReport
    assessment: Assessment
    reward: float
    """The assessment's reward after the config's scale and shift."""


@dataclass(frozen=True, slots=True)
class Observations:
    """What the agents hear next: one prompt an agent, and how that came about, as means to be logged."""

    prompts: list[str]
    metrics: dict[str, float]


@dataclass(slots=True)
class TurnNode:
    """One turn of one episode: what each agent saw, its group of completions, and the joint actions.

    `expanded` is the index of the joint action that was handed to the next turn (None at a leaf), and `transition`
    the metrics of that.
    """

    turn: int
    prompts: list[str]
    prompt_ids: list[tuple[int, ...]]
    completions: list[list[Completion]]
    joint_actions: list[JointAction]
    expanded: int | None = None
    transition: dict[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class Episode:
    """A task and the turns that were played, first to last.

    `stopped` says why it ended before its last turn ("" if it did not): prompt_too_long, infra_error or
    early_termination. `detail` is the sandbox's reason for an infra_error.
    """

    task: Task
    nodes: list[TurnNode]
    stopped: str = ""
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Group:
    """What one agent's learner needs of one node: G completions of one prompt and their returns [G]."""

    turn: int
    prompt_ids: tuple[int, ...]
    completions: tuple[Completion, ...]
    returns: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class UpdateStats:
    """What one `Learner.update` did; loss and norm are means over its mini-batches, 0 where there is no gradient."""

    loss: float
    grad_norm: float
    learning_rate: float
    logprob_gap: float | None
    """Mean absolute difference between the learner's and the sampler's log-probabilities, nats a token,
    before the update. It is about 0 when both hold the same weights; None if nothing was computed."""
    optimizer_steps: int
    """Those taken. A mini-batch in which every group's returns are equal has no gradient, and takes none."""
    skipped_steps: int
    """Optimizer steps left out for a loss or gradient that is not finite."""
