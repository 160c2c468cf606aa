"""Measures of cooperation from independent joint answers to one task, whose parts are recombined and rewarded again.

All agents of a task answer the same first prompts in every sample, so answers of different samples can be combined in
turn 1. `s` numbers the samples, S is their number, N the number of agents, and `a_s` is agent a's answer in sample s.
Samples are the episodes of an evaluation, or the sibling joint actions of a node.

| measure | definition |
|---|---|
| `partner_shuffle` | own reward minus the reward of (a_s, b_(s+1), c_(s+2), ...) |
| `agreement` | share of samples whose shuffled reward is their own reward |
| `one_agent_twice` | reward of (a_s, a_(s+1), ...), mean over agents; for interchangeable agents |
| `over_one_agent_twice` | own reward minus `one_agent_twice` |
| `agent_i_contribution` | own reward minus the reward with an empty answer of agent i |
| `cross_play` | reward of the first model's a_s with the second model's b_(s+1) |
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from marl_ray.core.chat import Prompt, as_text
from marl_ray.core.episode import Episode, JointAction, Node, Texts

Rewards = Callable[[Sequence[Texts]], Awaitable[list[float]]]
"""Returns the reward of each joint answer; NaN without a verdict."""
PREFIX = "cooperation/"


@dataclass(frozen=True, slots=True)
class Answers:
    """Independent first answers to one task: `texts` [S] of `agents` agents, with their `rewards` [S].
    `interchangeable` means that any agent's answer may take any place."""

    agents: int
    texts: tuple[Texts, ...]
    rewards: tuple[float, ...]
    interchangeable: bool


def first_answers(
    episodes: Sequence[Episode], interchangeable: bool = False, limit: int | None = None
) -> Answers | None:
    """Return the answers of turn 1 of a task's episodes, of the first `limit` joint actions each. None if no episode
    has a first turn.

    Agents with equal prompts are interchangeable, and so are agents that the environment declares `interchangeable`.
    """
    texts = []
    rewards = []
    prompts: Sequence[Prompt] = ()
    for episode in episodes:
        root = episode.root
        if root is None:
            continue
        prompts = prompts or root.prompts
        for action in independent_actions(root)[:limit]:
            texts.append(root.texts(action))
            rewards.append(action.reward)
    if not texts:
        return None
    same_prompts = len(set(map(as_text, prompts))) == 1
    return Answers(len(prompts), tuple(texts), tuple(rewards), interchangeable or same_prompts)


def independent_actions(node: Node) -> list[JointAction]:
    """Return the joint actions that share no completion: completion g of every agent. With joint mode aligned these are
    all joint actions."""
    return [action for action in node.joint_actions if len(set(action.indices)) == 1]


def shuffled(texts: Sequence[Texts]) -> list[Texts]:
    """Return one joint answer per sample, with each agent's answer from another sample; none if S < N or S < 2.

    >>> shuffled([("a0", "b0"), ("a1", "b1"), ("a2", "b2")])
    [('a0', 'b1'), ('a1', 'b2'), ('a2', 'b0')]
    """
    samples = len(texts)
    # With fewer samples than agents, two agents would answer from one sample.
    if samples < 2 or samples < len(texts[0]):
        return []
    mixed = []
    for sample in range(samples):
        parts = []
        for agent in range(len(texts[0])):
            parts.append(texts[(sample + agent) % samples][agent])
        mixed.append(tuple(parts))
    return mixed


def asked_twice(texts: Sequence[Texts], agent: int) -> list[Texts]:
    """Return one joint answer per sample that consists of independent answers of one agent.

    >>> asked_twice([("a0", "b0"), ("a1", "b1")], 1)
    [('b0', 'b1'), ('b1', 'b0')]
    """
    return shuffled([(joint[agent],) * len(joint) for joint in texts])


def without(texts: Sequence[Texts], agent: int) -> list[Texts]:
    """Return the joint answers with an empty answer of one agent.

    >>> without([("a0", "b0")], 0)
    [('', 'b0')]
    """
    return [(*joint[:agent], "", *joint[agent + 1 :]) for joint in texts]


def crossed(first: Sequence[Texts], second: Sequence[Texts]) -> list[Texts]:
    """Return agent 0's answers of `first` with agent 1's answers of `second`, each from another sample.

    >>> crossed([("a0", "b0"), ("a1", "b1")], [("c0", "d0"), ("c1", "d1")])
    [('a0', 'd1'), ('a1', 'd0')]
    """
    count = min(len(first), len(second))
    if count < 2:
        return []
    return [(first[s][0], second[(s + 1) % count][1]) for s in range(count)]


async def cooperation(answers: Answers, rewards_of: Rewards) -> dict[str, float]:
    """Return the measures of one task. Measures that need more samples, interchangeable agents or unknown rewards are
    left out, and so are all for a single agent."""
    if answers.agents == 1:
        return {}
    recombined = {"shuffled": shuffled(answers.texts)}
    for agent in range(answers.agents):
        recombined[f"without_{agent}"] = without(answers.texts, agent)
    if answers.interchangeable:
        for agent in range(answers.agents):
            recombined[f"twice_{agent}"] = asked_twice(answers.texts, agent)
    # Equal joint answers are executed once. A dict keeps their order.
    distinct: dict[Texts, float] = {}
    for joint_answers in recombined.values():
        distinct |= dict.fromkeys(joint_answers, math.nan)
    rewards = await rewards_of(list(distinct))
    reward_of = dict(zip(distinct, rewards, strict=True))
    by_name = {}
    for name, joint_answers in recombined.items():
        by_name[name] = list(map(reward_of.__getitem__, joint_answers))
    return measures(answers, by_name)


def measures(answers: Answers, rewards: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Return the measures from the rewards [S] of recombined answers, by the names that `cooperation` gives them."""
    agents = range(answers.agents)
    mean = fmean(answers.rewards)
    found: dict[str, float] = {}
    mixed = rewards["shuffled"]
    if mixed:
        found["partner_shuffle"] = mean - fmean(mixed)
        if not any(map(math.isnan, mixed)):
            pairs = zip(answers.rewards, mixed, strict=True)
            found["agreement"] = fmean(math.isclose(own, other, abs_tol=1e-9) for own, other in pairs)
        if answers.interchangeable:
            twice = fmean(fmean(rewards[f"twice_{agent}"]) for agent in agents)
            found["one_agent_twice"] = twice
            found["over_one_agent_twice"] = mean - twice
    for agent in agents:
        found[f"agent_{agent}_contribution"] = mean - fmean(rewards[f"without_{agent}"])
    # A reward without a verdict is NaN, and so is each measure that contains it.
    return {f"{PREFIX}{name}": value for name, value in found.items() if not math.isnan(value)}


def contribution_name(agent: int) -> str:
    """Return the name of an agent's contribution in metric rows and evaluations."""
    return f"{PREFIX}agent_{agent}_contribution"


def least_contribution(means: Mapping[str, float]) -> int | None:
    """Return the agent that contributes least to the reward of turn 1, from means by name; None without measures."""
    contributions = {}
    for name, mean in means.items():
        if name.startswith(PREFIX) and name.endswith("_contribution"):
            contributions[int(name.split("_")[1])] = mean
    return min(contributions, key=contributions.__getitem__, default=None)
