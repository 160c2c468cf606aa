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
from functools import partial
from statistics import fmean

from marl_ray.core.chat import as_text
from marl_ray.core.episode import Episode, JointAction, Node, Texts
from marl_ray.telemetry.metrics import expected_return

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
    roots = [episode.root for episode in episodes if episode.root is not None]
    actions = [(root, action) for root in roots for action in independent_actions(root)[:limit]]
    if not actions:
        return None
    samples = [(root.texts(action), action.reward) for root, action in actions]
    texts, rewards = zip(*samples, strict=True)
    same = len(set(map(as_text, roots[0].prompts))) == 1
    return Answers(len(roots[0].prompts), texts, rewards, interchangeable or same)


def independent_actions(node: Node) -> list[JointAction]:
    """Return the joint actions that share no completion: completion g of every agent. With joint mode aligned these are
    all joint actions."""
    return [action for action in node.joint_actions if len(set(action.indices)) == 1]


def shuffled(texts: Sequence[Texts]) -> list[Texts]:
    """Return one joint answer per sample, with each agent's answer from another sample; none if S < N or S < 2.

    >>> shuffled([("a0", "b0"), ("a1", "b1"), ("a2", "b2")])
    [('a0', 'b1'), ('a1', 'b2'), ('a2', 'b0')]
    """
    samples, agents = len(texts), len(texts[0]) if texts else 0
    if samples < max(2, agents):
        return []
    return [tuple(texts[(s + agent) % samples][agent] for agent in range(agents)) for s in range(samples)]


def asked_twice(texts: Sequence[Texts], agent: int) -> list[Texts]:
    """Return one joint answer per sample that consists of independent answers of one agent.

    >>> asked_twice([("a0", "b0"), ("a1", "b1")], 1)
    [('b0', 'b1'), ('b1', 'b0')]
    """
    return shuffled([(own[agent],) * len(own) for own in texts])


def without(texts: Sequence[Texts], agent: int) -> list[Texts]:
    """Return the joint answers with an empty answer of one agent.

    >>> without([("a0", "b0")], 0)
    [('', 'b0')]
    """
    return [(*own[:agent], "", *own[agent + 1 :]) for own in texts]


def crossed(first: Sequence[Texts], second: Sequence[Texts]) -> list[Texts]:
    """Return agent 0's answers of `first` with agent 1's answers of `second`, each from another sample.

    >>> crossed([("a0", "b0"), ("a1", "b1")], [("c0", "d0"), ("c1", "d1")])
    [('a0', 'd1'), ('a1', 'd0')]
    """
    count = min(len(first), len(second))
    return [(first[s][0], second[(s + 1) % count][1]) for s in range(count)] if count > 1 else []


async def cooperation(answers: Answers, rewards_of: Rewards) -> dict[str, float]:
    """Return the measures of one task. Measures that need more samples, interchangeable agents or unknown rewards are
    left out, and so are all for a single agent."""
    if answers.agents == 1:
        return {}
    agents = range(answers.agents)
    parts = {"shuffled": shuffled(answers.texts)}
    parts |= {f"without_{agent}": without(answers.texts, agent) for agent in agents}
    if answers.interchangeable:
        parts |= {f"twice_{agent}": asked_twice(answers.texts, agent) for agent in agents}
    distinct = list(dict.fromkeys(texts for part in parts.values() for texts in part))
    known = dict(zip(distinct, await rewards_of(distinct), strict=True))
    return measures(answers, {name: [known[texts] for texts in part] for name, part in parts.items()})


def measures(answers: Answers, rewards: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Return the measures from the rewards [S] of recombined answers, by the names that `cooperation` gives them."""
    agents, own = range(answers.agents), answers.rewards
    found: dict[str, float] = {}
    mixed = rewards["shuffled"]
    if mixed:
        found["partner_shuffle"] = fmean(own) - fmean(mixed)
        if not any(map(math.isnan, mixed)):
            found["agreement"] = fmean(math.isclose(a, b, abs_tol=1e-9) for a, b in zip(own, mixed, strict=True))
        if answers.interchangeable:
            twice = fmean(fmean(rewards[f"twice_{agent}"]) for agent in agents)
            found["one_agent_twice"] = twice
            found["over_one_agent_twice"] = fmean(own) - twice
    for agent in agents:
        found[f"agent_{agent}_contribution"] = fmean(own) - fmean(rewards[f"without_{agent}"])
    return {f"{PREFIX}{name}": value for name, value in found.items() if not math.isnan(value)}


def contribution_name(agent: int) -> str:
    """Return the name of an agent's contribution in metric rows and evaluations."""
    return f"{PREFIX}agent_{agent}_contribution"


def least_contribution(means: Mapping[str, float]) -> int | None:
    """Return the agent that contributes least to the reward of turn 1, from means by name; None without measures."""
    names = (name for name in means if name.startswith(PREFIX) and name.endswith("_contribution"))
    return min((int(name.split("_")[1]) for name in names), key=lambda a: means[contribution_name(a)], default=None)


def token_counts(episodes: Sequence[Episode], order: Sequence[Sequence[int]], discount: float) -> dict[str, float]:
    """Return the mean tokens of an episode, all of them and those on its critical path, and the expected return per
    token of either kind.

    Agents of one round answer at the same time, so a round takes as long as its longest answer; rounds and turns follow
    each other. `order` lists the rounds as in `Environment.order`. Each node counts with its mean joint action, and
    several continuations of a node with their mean.
    """
    roots = [episode.root for episode in episodes if episode.root is not None]
    if not roots:
        return {}
    reward = fmean(expected_return(root, discount) for root in roots)
    found: dict[str, float] = {}
    for name, count in (("critical_path", partial(_critical_path, order)), ("all", sum)):
        found[f"tokens/{name}"] = tokens = fmean(_tokens_from(root, count) for root in roots)
        if tokens:
            found[f"reward_per_token/{name}"] = reward / tokens
    return found


def _tokens_from(node: Node, count: Callable[[list[int]], float]) -> float:
    """Return the expected tokens of a node and its continuations; branches that ended have none."""
    below = [_tokens_from(child, count) for child in node.children.values()]
    return fmean(map(count, _lengths(node))) + sum(below) / max(len(below) + len(node.stopped), 1)


def _critical_path(order: Sequence[Sequence[int]], lengths: list[int]) -> float:
    return sum(max(lengths[agent] for agent in agents) for agents in order)


def _lengths(node: Node) -> list[list[int]]:
    """Return the tokens of each agent's answer [joint actions][agents]."""
    lengths: list[list[int]] = []
    for action in node.joint_actions:
        of_agents: list[int] = []
        for agent in range(len(node.calls)):
            of_agents.append(sum(len(call.completion.token_ids) for call in node.calls_of(agent, action)))
        lengths.append(of_agents)
    return lengths
