"""Measures of cooperation from independent joint answers to one task, whose parts are recombined and rewarded again.

All agents of a task answer the same first prompts in every sample, so answers of different samples can be combined in
turn 1. `s` numbers the samples, S is their number, N the number of agents, and `a_s` is agent a's answer in sample s.

| measure | definition |
|---|---|
| `partner_shuffle` | own reward minus the reward of (a_s, b_(s+1), c_(s+2), ...) |
| `agreement` | share of samples whose shuffled reward is their own reward |
| `over_one_agent_twice` | own reward minus the mean over agents of that of (a_s, a_(s+1), ...); for equal prompts |
| `agent_i_contribution` | own reward minus the reward with an empty answer of agent i |
| `cross_play` | reward of the first model's a_s with the second model's b_(s+1) |
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from marl_ray.core.chat import as_text
from marl_ray.core.episode import Episode, Node
from marl_ray.evaluation.statistics import Estimate

Texts = tuple[str, ...]
"""One answer per agent."""
Rewards = Callable[[Sequence[Texts]], Awaitable[list[float]]]
"""Returns the reward of each joint answer; NaN without a verdict."""
PREFIX = "cooperation/"


@dataclass(frozen=True, slots=True)
class Answers:
    """The first answers to one task: `texts` [S] with their `rewards` [S], and the agents' prompts."""

    prompts: Texts
    texts: tuple[Texts, ...]
    rewards: tuple[float, ...]

    @property
    def agents(self) -> int:
        return len(self.prompts)

    @property
    def interchangeable(self) -> bool:
        """Whether any agent's answer may take any place: all agents have the same prompt."""
        return len(set(self.prompts)) == 1


def first_answers(episodes: Sequence[Episode]) -> Answers | None:
    """Return the answers of turn 1 of a task's episodes, None if no episode has a first turn."""
    roots = [episode.root for episode in episodes if episode.root is not None]
    if not roots:
        return None
    actions = [(root, action) for root in roots for action in root.joint_actions]
    texts = (
        tuple(group[g].text for group, g in zip(root.completions, action.indices, strict=True))
        for root, action in actions
    )
    return Answers(tuple(map(as_text, roots[0].prompts)), tuple(texts), tuple(action.reward for _, action in actions))


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
    """Return the measures of one task. Measures that need more samples or equal prompts are left out."""
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
    if mixed and answers.agents > 1:
        found["partner_shuffle"] = fmean(own) - fmean(mixed)
        found["agreement"] = fmean(math.isclose(a, b, abs_tol=1e-9) for a, b in zip(own, mixed, strict=True))
        if answers.interchangeable:
            twice = fmean(fmean(rewards[f"twice_{agent}"]) for agent in agents)
            found["one_agent_twice"] = twice
            found["over_one_agent_twice"] = fmean(own) - twice
    for agent in agents if answers.agents > 1 else ():
        found[f"agent_{agent}_contribution"] = fmean(own) - fmean(rewards[f"without_{agent}"])
    return {f"{PREFIX}{name}": value for name, value in found.items() if not math.isnan(value)}


def least_contribution(numbers: Mapping[str, Estimate]) -> tuple[int, Estimate] | None:
    """Return the agent that contributes least to the reward of turn 1, with its contribution; None without measures."""
    names = (name for name in numbers if name.startswith(PREFIX) and name.endswith("_contribution"))
    found = [(int(name.split("_")[1]), numbers[name]) for name in names]
    return min(found, key=lambda pair: pair[1].mean, default=None)


def token_counts(episodes: Sequence[Episode], order: Sequence[Sequence[int]]) -> dict[str, float]:
    """Return the mean tokens of an episode: all of them, and those on its critical path.

    Agents of one round answer at the same time, so a round takes as long as its longest answer; rounds and turns follow
    each other. `order` lists the rounds as in `Environment.order`. Each node counts with its mean joint action.
    """
    paths, totals = [], []
    for episode in episodes:
        nodes = [node for _, node in episode.nodes()]
        if nodes:
            paths.append(sum(_critical_path(node, order) for node in nodes))
            totals.append(sum(fmean(map(sum, _lengths(node))) for node in nodes))
    return {"tokens/critical_path": fmean(paths), "tokens/all": fmean(totals)} if paths else {}


def _critical_path(node: Node, order: Sequence[Sequence[int]]) -> float:
    return fmean(sum(max(lengths[agent] for agent in agents) for agents in order) for lengths in _lengths(node))


def _lengths(node: Node) -> list[list[int]]:
    """Return the tokens of each agent's answer [joint actions][agents]."""
    return [
        [len(group[g].token_ids) for group, g in zip(node.completions, action.indices, strict=True)]
        for action in node.joint_actions
    ]
