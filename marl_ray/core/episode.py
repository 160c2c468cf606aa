"""What was played: tasks, completions, joint actions, and the tree that they make.

A run is a cooperative Dec-POMDP: agent i sees only its own prompts (observations) and its own past responses
(history); a tuple of all agents' completions is a joint action; the environment makes an outcome of it. An episode is
a tree of nodes: at a node every agent has one prompt and one group of completions, and a joint action that is expanded
leads to a child. A chain, one expanded joint action a node, is the special case.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

WeightVersion = int
"""Counts the steps an agent has done: 0 is the base model. A step without a gradient has a version too."""


@dataclass(frozen=True, slots=True)
class Task:
    """One problem. `fields` are what its environment needs, unseen by everything else: hashable values by name.

    Example:
        >>> Task("toy/1", "Write double.", {"entry_point": "double", "tests": ("assert double(2) == 4",)})
    """

    id: str
    prompt: str
    fields: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Completion:
    """One sampled response of one agent.

    `token_ids` are the sampled ids, a final EOS kept and nothing after it; `logprobs` are the behaviour
    log-probabilities of those ids under the distribution they were drawn from (temperature, top-p and top-k
    applied), same length. `spans` say which version produced them: (version, number of tokens), in the tokens' order;
    there is more than one where weights changed in flight.

    Example:
        >>> Completion((5, 6, 0), "ab", (-0.1, -0.2, -0.3), "stop", ((7, 2), (8, 1))).weight_version
        7
    """

    token_ids: tuple[int, ...]
    text: str
    logprobs: tuple[float, ...]
    finish_reason: str
    spans: tuple[tuple[WeightVersion, int], ...]

    @property
    def weight_version(self) -> WeightVersion:
        """The oldest that produced a token; -1 if there is none."""
        return min((version for version, _ in self.spans), default=-1)


class Evidence(Protocol):
    """What an environment keeps of a verdict: feedback and records are made from it. Only the environment looks in."""

    def data(self) -> dict[str, Any]:
        """Plain data for episodes.jsonl."""

    def lines(self) -> list[str]:
        """The same for people, one fact a line."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the environment makes of one joint action.

    `levels` are the parts the reward is the sum of; `metrics` are means to be logged (0 or 1 for flags); `counts` are
    sums to be logged, under names of their own (`sandbox/timeouts`). `rewards` are the agents' own, one each, where an
    environment gives them; empty, all of them get `reward`. `failure` is set, and nothing else counts, when the
    machinery gave no verdict.
    """

    reward: float
    levels: Mapping[str, float] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)
    rewards: tuple[float, ...] = ()
    evidence: Evidence | None = None
    failure: str = ""


@dataclass(frozen=True, slots=True)
class JointAction:
    """One joint action at a node: `indices[i]` is agent i's completion among its completions there.

    `reward` is the outcome's, and `rewards` [N] each agent's, after the config's scale and shift.
    """

    indices: tuple[int, ...]
    outcome: Outcome
    reward: float
    rewards: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class GreedySample:
    """Every agent's most likely answer, taken together: executed and rewarded, and never learned from. Entries are one
    an agent; rewards are after the config's scale and shift."""

    completions: tuple[Completion, ...]
    reward: float
    rewards: tuple[float, ...]


@dataclass(slots=True)
class Node:
    """One turn: what each agent read, its group of completions, and the joint actions made of them.

    Lists are one entry an agent. `children` are by the index of the joint action that led there; `transitions` are the
    metrics of the way to a child, by the same index. `greedy` and `counterfactuals` are there where an estimator asks
    for them; the latter, by agent, are what each joint action [J] had earned it with a stand-in for its answer.

    Where roles answer one after another, the prompt of a later one holds an earlier answer. `prompts` then hold those
    of one line of answers, and the group is what was answered to them. Other earlier answers were continued once each,
    so that they have a reward: `other_prompts` are what was read for that, one for each of the agent's last
    completions, which have no siblings (see `marl_ray.rollout.turn`).
    """

    turn: int
    prompts: list[str]
    prompt_ids: list[tuple[int, ...]]
    completions: list[list[Completion]]
    joint_actions: list[JointAction]
    children: dict[int, Node] = field(default_factory=dict)
    transitions: dict[int, Mapping[str, float]] = field(default_factory=dict)
    greedy: GreedySample | None = None
    counterfactuals: dict[int, list[float]] = field(default_factory=dict)
    other_prompts: list[list[str]] = field(default_factory=list)

    @property
    def every_completion(self) -> list[list[Completion]]:
        """Whatever was sampled here: each agent's answers and, where there is one, its greedy answer."""
        greedy = [()] * len(self.completions) if self.greedy is None else [(c,) for c in self.greedy.completions]
        return [[*said, *more] for said, more in zip(self.completions, greedy, strict=True)]

    def group(self, agent: int) -> list[Completion]:
        """The agent's answers to its prompt: siblings, which are compared with each other and learned from."""
        others = len(self.other_prompts[agent]) if self.other_prompts else 0
        return self.completions[agent][: len(self.completions[agent]) - others]

    def prompt_of(self, agent: int, index: int) -> str:
        """What the agent read for a completion."""
        own = len(self.group(agent))
        return self.prompts[agent] if index < own else self.other_prompts[agent][index - own]


@dataclass(frozen=True, slots=True)
class Stop:
    """Where and why an episode ended before its last turn.

    `path` are the indices of the joint actions that lead there from the root; `reason` is prompt_too_long, infra_error
    or early_termination; `detail` says more of an infra_error.
    """

    path: tuple[int, ...]
    reason: str
    detail: str = ""


@dataclass(slots=True)
class Episode:
    """A task and the tree that was played on it; no root where even the first turn could not be played."""

    task: Task
    root: Node | None = None
    stops: list[Stop] = field(default_factory=list)

    def nodes(self) -> Iterator[tuple[tuple[int, ...], Node]]:
        """Every node with its path from the root, parents before their children, in the joint actions' order."""
        return iter(()) if self.root is None else _walk((), self.root)

    def stopped_by(self, reason: str) -> bool:
        """Whether a part of it ended for this reason."""
        return any(stop.reason == reason for stop in self.stops)


def _walk(path: tuple[int, ...], node: Node) -> Iterator[tuple[tuple[int, ...], Node]]:
    yield path, node
    for index, child in sorted(node.children.items()):
        yield from _walk((*path, index), child)
