"""Diagnostics of credit from replayed answers: each completion of an agent beside the same answers of its partners.

The diagnostics follow C3 (Chen et al., 2026, "Contextual counterfactual credit assignment for multi-agent reinforcement
learning in LLM collaboration"): how well advantages agree with replayed contributions, how much they vary at one node,
and how much an agent's answer influences the result. A replay needs rewards that are known without new samples, and
agents that answer at the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean, pvariance, variance

from marl_ray.cooperation.recombined_answers import independent_actions
from marl_ray.core.episode import JointAction, Node, Texts
from marl_ray.core.statistics import rank_correlation

Rewarded = Callable[[Texts], JointAction | None]
"""Returns a joint answer with its reward, None if the reward is not known."""
Replays = Sequence[Sequence[JointAction]]
"""Entry [s][g] is joint answer s with the agent's answer replaced by the agent's answer g; answer s is in [s][s]."""


def replays(node: Node, agent: int, rewarded: Rewarded, limit: int | None = None) -> Replays | None:
    """Return the replays of an agent's answers in the first `limit` independent joint actions of a node.

    None for fewer than two joint actions, or if a reward is not known.
    """
    texts = list(map(node.texts, independent_actions(node)[:limit]))
    found: list[list[JointAction]] = []
    for joint_answer in texts:
        partners_before = joint_answer[:agent]
        partners_after = joint_answer[agent + 1 :]
        row = []
        for other in texts:
            action = rewarded((*partners_before, other[agent], *partners_after))
            if action is None:
                return None
            row.append(action)
        found.append(row)
    return found if len(found) > 1 else None


@dataclass(slots=True)
class CreditDiagnostics:
    """The diagnostics of one agent in one turn, over the nodes that are added."""

    _variances: list[float] = field(default_factory=list)
    _pairs: list[tuple[float, float]] = field(default_factory=list)
    """Advantages with replayed contributions."""
    _own: float = 0.0
    _total: float = 0.0
    _complete: bool = True
    """Whether the replays of all nodes are known: a selection of nodes would bias the diagnostics."""

    def add_advantages(self, advantages: Sequence[float]) -> None:
        """Add the advantages of the agent's group at a node."""
        self._variances.append(pvariance(advantages))

    def add_replays(self, found: Replays | None) -> None:
        """Add the replays of the agent's answers at a node, None if they are not known."""
        if found is None:
            self._complete = False
            return
        # Share of the agent's answer in the variance of the reward: partners fixed, over everything that varies.
        variances = []
        sampled = []
        for number, row in enumerate(found):
            variances.append(variance([action.reward for action in row]))
            sampled.append(row[number].reward)
        self._own += fmean(variances)
        self._total += variance(sampled)

    def add_credit(self, agent: int, advantages: Sequence[float], found: Replays) -> None:
        """Add the advantages of replayed answers at a node, if there are three or more. The contribution of an answer
        is its mean gain over other answers beside the same partners, without the joint answers that were sampled: no
        reward is in both numbers of a pair."""
        if len(found) < 3:
            return
        differences: list[list[float]] = [[] for _ in found]
        """Entry g: the gains of answer g beside the partners of the other joint answers."""
        for sampled, row in enumerate(found):
            rewards = [action.rewards[agent] for action in row]
            mean = fmean(rewards[:sampled] + rewards[sampled + 1 :])
            for answer, reward in enumerate(rewards):
                if answer != sampled:
                    differences[answer].append(reward - mean)
        self._pairs += zip(advantages, map(fmean, differences), strict=False)

    def metrics(self) -> dict[str, float]:
        """Return `credit_variance`, `influence` and `credit_fidelity`; without the ones that are not defined."""
        found: dict[str, float] = {}
        if self._variances:
            found["credit_variance"] = fmean(self._variances)
        if self._complete and self._total:
            found["influence"] = self._own / self._total
        correlation = rank_correlation(self._pairs)
        if self._complete and correlation is not None:
            found["credit_fidelity"] = correlation
        return found
