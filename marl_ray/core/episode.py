"""Tasks, calls of agents, joint actions, and the episode tree that they form.

There is one record for every kind of episode. An `AgentCall` is one prompt of one agent and one sampled completion of
it. A joint action is one call or more per agent, gets an outcome from the environment and, if it is expanded, leads to
a child. Two numbers of a call tell its place among the calls
of its agent:

- `sibling`: calls of one sibling have one return, and siblings are compared with each other. None: the call gives a
  joint action its reward and is compared with no other call.
- `branch`: 0 for calls that answer the node's own prompt, and above 0 for calls with another prompt.

| episode | calls of an agent at a node | branch | sibling |
|---|---|---|---|
| agents answer at the same time | G completions of one prompt | 0 | 0 to G - 1 |
| a later agent reads earlier answers | G completions of the followed branch's prompt, | 0 | 0 to G - 1 |
| | and one of every other branch's prompt | 1, 2, ... | None |
| a conversation (composition `chat`) | as above, and prompts contain all earlier turns | | |
| a program calls agents | all calls of G runs | 1, 2, ... | number of the run |

Two agents answer in an order, with groups of two. Agent 1 reads the first answer of agent 0 twice, and the other answer
once, so there are three joint actions:

    agent 0   a0 (branch 0, sibling 0)   a1 (branch 0, sibling 1)
    agent 1   b0 (branch 0, sibling 0)   b1 (branch 0, sibling 1)   b2 (branch 1, sibling None)
    indices of the joint actions: (0, 0), (0, 1), (1, 2)

The return of a0 is the mean of the first two rewards, the return of a1 is the third, and b2 is not learned from.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
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


NOT_CALLED = Completion((), "", (), "not_called", ())
"""Stands for the completions of an agent that a program did not call."""


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


@dataclass(frozen=True, slots=True)
class AgentCall:
    """One completion of one agent, with its prompt. The module's docstring defines `branch` and `sibling`.

    The environment or the program wrote `prompt`, and the engine read the tokens `prompt_ids`. With composition `chat`,
    `prompt` is the message of the turn and `prompt_ids` are the whole conversation. `repeated`: the completion was
    sampled in another run of the program and is given again.
    """

    agent: int
    prompt: Prompt
    prompt_ids: tuple[int, ...]
    completion: Completion
    branch: int = 0
    sibling: int | None = None
    repeated: bool = False

    @property
    def conversation(self) -> tuple[int, ...]:
        """The token ids up to the end of the completion."""
        return self.prompt_ids + self.completion.token_ids


def sibling_calls(
    prompt_ids: tuple[int, ...], completions: Iterable[Completion], agent: int = 0, prompt: Prompt = ""
) -> tuple[AgentCall, ...]:
    """Return the calls of one agent that are compared with each other because they answer one prompt."""
    numbered = enumerate(completions)
    return tuple(AgentCall(agent, prompt, prompt_ids, completion, sibling=number) for number, completion in numbered)


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
    limited: list[tuple[str, float, float]] = []
    for reward in (outcome.reward, *outcome.rewards):
        limited.append(("reward", reward, MAX_REWARD))
    for name, level in outcome.levels.items():
        limited.append((f"level {name}", level, MAX_REWARD))
    for name, metric in outcome.metrics.items():
        limited.append((f"metric {name}", metric, MAX_METRIC))
    for name, number, limit in limited:
        # A plug-in may return anything; other checks name a value that is no number.
        if isinstance(number, Real) and abs(number) > limit:
            return Outcome(0.0, failure=f"the {name} {short_repr(number, 40)} is beyond {limit:g}")
    return outcome


@dataclass(frozen=True, slots=True)
class JointAction:
    """One joint action at a node: `indices[i]` is the index of agent i's answer in its calls there, of several calls
    the last one. `reward` and `rewards` [N], one per agent, are the outcome's after the configured scale and shift.
    `latency` is the cost of the turn's time (`latency_coef`), which returns subtract from every agent's reward."""

    indices: tuple[int, ...]
    outcome: Outcome
    reward: float
    rewards: tuple[float, ...]
    latency: float = 0.0


Texts = tuple[str, ...]
"""The texts of a joint action, one per agent."""


@dataclass(frozen=True, slots=True)
class GreedySample:
    """The joint action of every agent's greedy completion: executed and rewarded (fields as of `JointAction`), but
    never learned from."""

    completions: tuple[Completion, ...]
    reward: float
    rewards: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class BranchReplay:
    """Runs of a program that are equal up to one call, which was sampled anew in each of them.

    `calls` are the indices of its completions in the calls of the `agent`, of all these runs; they answer one prompt.
    `weight` is the factor of their gradient: one by the probability that this call was chosen.
    """

    agent: int
    calls: tuple[int, ...]
    weight: float


@dataclass(slots=True)
class Node:
    """One turn, or all runs of a program: the calls of each agent, and the joint actions.

    `children`, `transitions` (metrics of the transition to the child) and `stopped` are keyed by the index of the joint
    action. `stopped` has the joint actions after which the branch ended because they solved the task (`external.stop`),
    with the number of turns that were left.

    `greedy` and `counterfactuals` are present if an estimator needs them: the latter are, by agent, the rewards of the
    joint actions [J] with a counterfactual action in place of the agent's completion. `recombined` are all joint
    actions that were executed for these baselines, by the agents' texts, without indices.

    An agent that a run of a program does not call has one call without tokens there. With `replays`, only the calls in
    them are compared and learned from.
    """

    turn: int
    calls: list[list[AgentCall]]
    """Per agent; calls of branch 0 come first."""
    joint_actions: list[JointAction]
    children: dict[int, Node] = field(default_factory=dict)
    transitions: dict[int, Mapping[str, float]] = field(default_factory=dict)
    greedy: GreedySample | None = None
    counterfactuals: dict[int, list[float]] = field(default_factory=dict)
    recombined: dict[Texts, JointAction] = field(default_factory=dict)
    stopped: dict[int, int] = field(default_factory=dict)
    replays: list[BranchReplay] = field(default_factory=list)

    @property
    def prompts(self) -> list[Prompt]:
        """Each agent's first prompt: the prompt of branch 0, if there is one."""
        return [calls[0].prompt for calls in self.calls]

    @property
    def every_completion(self) -> list[list[Completion]]:
        """All sampled completions per agent, including the greedy completion if there is one."""
        completions: list[list[Completion]] = []
        for agent, calls in enumerate(self.calls):
            of_agent = [call.completion for call in calls if not call.repeated]
            if self.greedy is not None:  # sampled with the same weights, so it counts as a sample of a version
                of_agent.append(self.greedy.completions[agent])
            completions.append(of_agent)
        return completions

    def answers(self, action: JointAction) -> list[AgentCall]:
        """Return the last call of each agent in a joint action."""
        return [calls[index] for calls, index in zip(self.calls, action.indices, strict=True)]

    def rewards_of(self, agent: int) -> list[float]:
        """Return an agent's rewards of the joint actions, [J]."""
        return [action.rewards[agent] for action in self.joint_actions]

    def texts(self, action: JointAction) -> Texts:
        """Return the agents' texts of a joint action."""
        return tuple(call.completion.text for call in self.answers(action))

    def group(self, agent: int) -> list[AgentCall]:
        """Return the agent's calls that are compared and learned from."""
        return [call for call in self.calls[agent] if call.sibling is not None]

    def calls_of(self, agent: int, action: JointAction) -> list[AgentCall]:
        """Return all calls of an agent in a joint action."""
        answer = self.calls[agent][action.indices[agent]]
        if answer.sibling is None:  # a continuation of another branch: one call per agent
            return [answer]
        return [call for call in self.calls[agent] if call.sibling == answer.sibling]


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
    `reward_calls` is the number of outcomes, also of baselines and of lost nodes (0: not counted). `roles` are the
    names of the agents for this task, for logs."""

    task: Task
    root: Node | None = None
    stops: list[Stop] = field(default_factory=list)
    control_tokens: int = 0
    unscored: list[Outcome] = field(default_factory=list)
    reward_calls: int = 0
    roles: tuple[str, ...] = ()

    def nodes(self) -> Iterator[tuple[tuple[int, ...], Node]]:
        """Yield every node with its path from the root, parents before children, in the order of joint actions."""
        stack: list[tuple[tuple[int, ...], Node]] = []
        if self.root is not None:
            stack.append(((), self.root))
        while stack:
            path, node = stack.pop()
            yield path, node
            for index in sorted(node.children, reverse=True):  # the last one is taken first
                stack.append(((*path, index), node.children[index]))

    def stopped_by(self, reason: str) -> bool:
        """Return whether a branch of the episode ended for this reason."""
        return any(stop.reason == reason for stop in self.stops)
