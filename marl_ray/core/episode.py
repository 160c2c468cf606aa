"""Tasks, completions, joint actions, and the episode tree that they form.

At a node of the tree, every agent has one prompt and one group of completions. A joint action has one completion per
agent, gets an outcome from the environment and, if it is expanded, leads to a child.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Any, Literal, Protocol

from marl_ray.core.chat import Prompt
from marl_ray.core.text import short_repr

WeightVersion = int
"""Number of steps that a policy has learned from; 0 is the base model. A step without a gradient counts too."""


@dataclass(frozen=True, slots=True)
class Task:
    """One problem. `fields` holds hashable values by name that only its environment reads."""

    id: str
    prompt: str
    fields: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Completion:
    """One sampled response of one agent.

    `token_ids` are the sampled ids up to and including a final EOS, or the last token of a stop text; `text` has
    neither. `logprobs`, of the same length, are the behaviour log-probabilities under the sampled distribution
    (temperature, top-p and top-k applied). `spans` are pairs (weight version, number of tokens) in the tokens' order;
    there are several if weights changed during generation. `json_schema` is the schema that constrained the sampler, as
    JSON text, or empty.
    """

    token_ids: tuple[int, ...]
    text: str
    logprobs: tuple[float, ...]
    finish_reason: str
    spans: tuple[tuple[WeightVersion, int], ...]
    json_schema: str = ""

    @property
    def weight_version(self) -> WeightVersion:
        """The oldest version that produced a token; -1 without tokens."""
        return min((version for version, _ in self.spans), default=-1)


@dataclass(frozen=True, slots=True)
class SamplingSpec:
    """Sampling parameters of a group. `seed` makes the group reproducible under any load; `top_k` None: all tokens.

    `stop` are the texts that end a completion, and `template_kwargs` the variables of the prompt's chat template.
    Completions are JSON of `json_schema`, a JSON text, unless it is empty.
    """

    num_generations: int
    max_new_tokens: int
    temperature: float
    top_p: float
    top_k: int | None
    seed: int
    min_new_tokens: int = 0
    stop: tuple[str, ...] = ()
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    json_schema: str = ""


@dataclass(frozen=True, slots=True)
class Generation:
    """The token ids of a prompt and its group of completions. Empty if the prompt is too long. `control_tokens` counts
    the control tokens that data or agents wrote into the prompt, which were read as text."""

    prompt_ids: tuple[int, ...]
    completions: tuple[Completion, ...]
    control_tokens: int = 0


class Evidence(Protocol):
    """An environment's record of an execution, for its feedback and logs. Only the environment reads it."""

    def data(self) -> dict[str, Any]:
        """Return plain data for episodes.jsonl."""

    def lines(self) -> list[str]:
        """Return the data as text, one fact per line."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The environment's evaluation of one joint action.

    `reward` is the sum of `levels`. `metrics` are logged as means (0 or 1 for flags) and `counts` as sums. `rewards`
    has one reward per agent, or is empty if all agents get `reward`. `failure` is set if the execution gave no verdict;
    all other fields are meaningless then, except `unscored`.

    `unscored` is set, beside `failure`, if this joint action alone has no reward and is left out of its group: `none`
    if the environment gives no reward, `error` if the call of a user's reward function failed.
    """

    reward: float
    levels: Mapping[str, float] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)
    rewards: tuple[float, ...] = ()
    evidence: Evidence | None = None
    failure: str = ""
    unscored: Literal["", "none", "error"] = ""


MAX_REWARD = 1e6
"""Greatest absolute value of a reward or level. Squares and sums of greater ones overflow, or hide all others."""
MAX_METRIC = 1e100
"""Greatest absolute value of a metric, which may be a time in nanoseconds or a number of bytes."""


def bounded_outcome(outcome: Outcome) -> Outcome:
    """Return the outcome, or a failure in its place if one of its numbers is too large. All rewards of a rollout pass
    through this function.

    Example:
        >>> bounded_outcome(Outcome(1e300)).failure
        'the reward 1e+300 is beyond 1e+06'
    """
    if outcome.failure:
        return outcome
    rewards = [("reward", reward) for reward in (outcome.reward, *outcome.rewards)]
    levels = [(f"level {name}", value) for name, value in outcome.levels.items()]
    metrics = [(f"metric {name}", value) for name, value in outcome.metrics.items()]
    for numbers, limit in ((rewards + levels, MAX_REWARD), (metrics, MAX_METRIC)):
        for name, number in numbers:
            if isinstance(number, Real) and abs(number) > limit:
                return Outcome(0.0, failure=f"the {name} {short_repr(number, 40)} is beyond {limit:g}")
    return outcome


@dataclass(frozen=True, slots=True)
class JointAction:
    """One joint action at a node: `indices[i]` is the index of agent i's completion at that node. `reward` and
    `rewards` [N], one per agent, are the outcome's after the configured scale and shift."""

    indices: tuple[int, ...]
    outcome: Outcome
    reward: float
    rewards: tuple[float, ...]


def joint_texts(groups: Sequence[Sequence[Completion]], indices: Sequence[int]) -> tuple[str, ...]:
    """Return the texts of one joint action, from the groups of all agents."""
    return tuple(group[index].text for group, index in zip(groups, indices, strict=True))


@dataclass(frozen=True, slots=True)
class GreedySample:
    """The joint action of every agent's greedy completion: executed and rewarded (fields as of `JointAction`), but
    never learned from."""

    completions: tuple[Completion, ...]
    reward: float
    rewards: tuple[float, ...]


@dataclass(slots=True)
class Node:
    """One turn: each agent's prompt, its group of completions, and the joint actions.

    Lists have one entry per agent. `children` and `transitions` (metrics of the transition to the child) are keyed by
    the index of the joint action. `greedy` and `counterfactuals` are present if an estimator needs them: the latter
    are, by agent, the rewards of the joint actions [J] with a counterfactual action in place of the agent's completion.
    `recombined` are all joint actions that were executed for these baselines, by the agents' texts, without indices.

    `stopped` maps the joint actions after which the branch ended because they solved the task (`external.stop`) to the
    number of turns that were left.

    If roles answer one after another, the prompt of a later role contains an earlier completion. `prompts` are then the
    prompts of the followed conversation branch, and the groups are the completions to these prompts. Every other branch
    is continued by one completion per later agent, for the reward: `other_prompts` are the prompts of these
    completions, which come last in `completions` and have no siblings (see `marl_ray.rollout.turn`).

    With composition `chat`, prompts of later turns are the messages that continue the conversations, and `prompt_ids`
    are the whole conversations.

    If joint actions are runs of a program, which calls every agent any number of times, `callers` has per agent the
    joint action of each completion, and every completion has its prompt in `other_prompts`. `prompts` are the first
    ones, and `indices` of a joint action are the last completions. An agent that a run does not call has one completion
    without tokens there.
    """

    turn: int
    prompts: list[Prompt]
    prompt_ids: list[tuple[int, ...]]
    completions: list[list[Completion]]
    joint_actions: list[JointAction]
    children: dict[int, Node] = field(default_factory=dict)
    transitions: dict[int, Mapping[str, float]] = field(default_factory=dict)
    greedy: GreedySample | None = None
    counterfactuals: dict[int, list[float]] = field(default_factory=dict)
    recombined: dict[tuple[str, ...], JointAction] = field(default_factory=dict)
    other_prompts: list[list[Prompt]] = field(default_factory=list)
    other_prompt_ids: list[list[tuple[int, ...]]] = field(default_factory=list)
    stopped: dict[int, int] = field(default_factory=dict)
    callers: list[list[int]] = field(default_factory=list)

    @property
    def every_completion(self) -> list[list[Completion]]:
        """All sampled completions per agent, including the greedy completion if there is one."""
        greedy = [()] * len(self.completions) if self.greedy is None else [(c,) for c in self.greedy.completions]
        return [[*sampled, *extra] for sampled, extra in zip(self.completions, greedy, strict=True)]

    def texts(self, action: JointAction) -> tuple[str, ...]:
        """Return the agents' texts of a joint action."""
        return joint_texts(self.completions, action.indices)

    def group(self, agent: int) -> list[Completion]:
        """Return the agent's completions of its prompt: the siblings that are compared and learned from."""
        others = len(self.other_prompts[agent]) if self.other_prompts else 0
        return self.completions[agent][: len(self.completions[agent]) - others]

    def prompt_of(self, agent: int, index: int) -> Prompt:
        """Return the prompt of a completion."""
        own = len(self.group(agent))
        return self.prompts[agent] if index < own else self.other_prompts[agent][index - own]

    def completions_of(self, agent: int, action: int) -> list[Completion]:
        """Return the agent's completions in the joint action number `action`."""
        if not self.callers:
            return [self.completions[agent][self.joint_actions[action].indices[agent]]]
        called = zip(self.completions[agent], self.callers[agent], strict=True)
        return [completion for completion, caller in called if caller == action]

    def conversation(self, agent: int, index: int) -> tuple[int, ...]:
        """Return the token ids of an agent's conversation up to the end of a completion."""
        own = len(self.group(agent))
        prompt_ids = self.prompt_ids[agent] if index < own else self.other_prompt_ids[agent][index - own]
        return prompt_ids + self.completions[agent][index].token_ids


@dataclass(frozen=True, slots=True)
class Stop:
    """The end of a branch before its last turn. `path` holds the indices of the joint actions from the root. `reason`
    is prompt_too_long, infra_error (explained by `detail`), unscored (too few joint actions have a reward, see
    `detail`), early_termination (of a whole node, by its mean reward) or solved (by its last joint action, see
    `external.stop`)."""

    path: tuple[int, ...]
    reason: str
    detail: str = ""


@dataclass(slots=True)
class Episode:
    """A task and its tree of nodes. `root` is None if the first turn failed. `control_tokens` is the sum over the
    generations (see `Generation`), and `unscored` are the outcomes without a reward (see `Outcome.unscored`).
    `reward_calls` is the number of outcomes, also of baselines and of lost nodes (0: not counted)."""

    task: Task
    root: Node | None = None
    stops: list[Stop] = field(default_factory=list)
    control_tokens: int = 0
    unscored: list[Outcome] = field(default_factory=list)
    reward_calls: int = 0

    def nodes(self) -> Iterator[tuple[tuple[int, ...], Node]]:
        """Yield every node with its path from the root, parents before children, in the order of joint actions."""
        stack: list[tuple[tuple[int, ...], Node]] = [] if self.root is None else [((), self.root)]
        while stack:
            path, node = stack.pop()
            yield path, node
            stack += [((*path, index), child) for index, child in sorted(node.children.items(), reverse=True)]

    def stopped_by(self, reason: str) -> bool:
        """Return whether a branch of the episode ended for this reason."""
        return any(stop.reason == reason for stop in self.stops)
