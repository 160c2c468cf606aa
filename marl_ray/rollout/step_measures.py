"""Measures of cooperation and of credit in training runs, without new samples.

Rewards of recombined answers are known without an execution where

- the environment has no programs (`abilities.WithoutPrograms`);
- joint mode cross has executed all combinations of completions;
- an estimator has executed joint actions with replaced or empty completions (`Node.recombined`).

`output.measure_cooperation` also executes other combinations. Measures whose rewards are unknown are left out.
"""

from __future__ import annotations

import asyncio
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean

from marl_ray.config import Config
from marl_ray.cooperation.credit_replay import CreditDiagnostics, Rewarded, replays
from marl_ray.cooperation.recombined_answers import cooperation, first_answers
from marl_ray.cooperation.token_counts import token_counts
from marl_ray.core.episode import Episode, JointAction, Node, Task, Texts
from marl_ray.credit.advantages import group_advantages
from marl_ray.credit.groups import build_group, needs_whole_batch
from marl_ray.environments import abilities
from marl_ray.environments.base import BaseEnvironment, Environment, Executor
from marl_ray.rollout.scorer import Scorer

MAX_SCORED_EPISODES = 8
"""Episodes of a training step whose recombined answers are scored in an environment without programs."""
MAX_SCORED_SAMPLES = 4
"""Joint actions per node that are recombined in these episodes."""


class StepMeasures:
    """Measures of the episodes of a training step, or of an evaluation during training."""

    def __init__(self, config: Config, environment: BaseEnvironment, executor: Executor) -> None:
        self._config = config
        self._environment = environment
        self._scorer: Scorer | None = None
        """None for episodes of programs, whose answers are not recombined."""
        self._scores_text = False
        """Whether joint answers are scored without an execution."""
        if isinstance(environment, Environment):
            self._scorer = Scorer(config, environment, executor)
            self._scores_text = isinstance(environment, abilities.WithoutPrograms)

    async def measure(self, episodes: Sequence[Episode], evaluation: bool = False) -> dict[str, float]:
        """Return the metrics `cooperation/*`, `tokens/*` and `reward_per_token/*`, and for training the diagnostics of
        credit. In an environment without programs, only some episodes of a training step are recombined."""
        tokens = self._token_counts(episodes)
        if self._config.num_agents == 1:
            return means(tokens)
        # Scoring a text takes time in the driver; executed programs are looked up.
        limited = self._scores_text and not evaluation
        limit = MAX_SCORED_SAMPLES if limited else None
        recombined: set[int] = set()
        if self._scorer is not None:
            recombined = self._recombined(episodes, MAX_SCORED_EPISODES if limited else None)
        measured: list[dict[str, float]] = []
        credit: defaultdict[tuple[int, int], CreditDiagnostics] = defaultdict(CreditDiagnostics)
        for number, episode in enumerate(episodes):
            for node in first_nodes(episode):
                rewarded = None
                if self._scorer is not None and number in recombined:
                    rewarded = self._rewarded(self._scorer, episode.task, node)
                    if node is episode.root:
                        row = await self._cooperation(self._scorer, episode, rewarded, evaluation, limit)
                        measured.append(row)
                if evaluation:
                    continue
                for agent in range(self._config.num_agents):
                    self._add_credit(credit[agent, node.turn], node, agent, rewarded, limit)
            await asyncio.sleep(0)  # other tasks of the driver run between episodes
        metrics = means(tokens) | means(measured)
        for (agent, turn), diagnostics in sorted(credit.items()):
            for name, value in diagnostics.metrics().items():
                metrics[f"agent_{agent}/turn_{turn + 1}/{name}"] = value
        return metrics

    def _token_counts(self, episodes: Sequence[Episode]) -> list[dict[str, float]]:
        """Return the counts of each episode that has a node."""
        counts: list[dict[str, float]] = []
        for episode in episodes:
            order = abilities.order(self._environment, episode.task)
            row = token_counts([episode], order, self._config.training.discount)
            if row:
                counts.append(row)
        return counts

    def _recombined(self, episodes: Sequence[Episode], limit: int | None) -> set[int]:
        """Return the numbers of the first `limit` episodes whose answers can be recombined: agents answer at the same
        time."""
        numbers: list[int] = []
        for number, episode in enumerate(episodes):
            if episode.root is not None and len(abilities.order(self._environment, episode.task)) == 1:
                numbers.append(number)
        return set(numbers[:limit])

    async def _cooperation(
        self, scorer: Scorer, episode: Episode, rewarded: Rewarded, evaluation: bool, limit: int | None
    ) -> dict[str, float]:
        setting = self._config.output.measure_cooperation
        execute = setting == "always" or (setting == "eval" and evaluation)

        async def rewards_of(joint: Sequence[Texts]) -> list[float]:
            known: dict[Texts, float] = {}
            unknown: list[Texts] = []
            for texts in joint:
                action = rewarded(texts)
                if action is None:
                    unknown.append(texts)
                else:
                    known[texts] = action.reward
            if unknown and execute:
                known |= zip(unknown, await scorer.rewards_of(episode.task, unknown), strict=True)
            return [known.get(texts, math.nan) for texts in joint]

        alike = isinstance(scorer.environment, abilities.InterchangeableAgents)
        answers = first_answers([episode], alike, limit)
        if answers is None:
            return {}
        return await cooperation(answers, rewards_of)

    def _rewarded(self, scorer: Scorer, task: Task, node: Node) -> Rewarded:
        """Return the function from joint answers at a node to their rewards, as far as they are known."""
        last = node.turn + 1 == self._config.training.num_turns
        known = dict(node.recombined)
        for action in node.joint_actions:
            known[node.texts(action)] = action

        def rewarded(texts: Texts) -> JointAction | None:
            if texts not in known and self._scores_text:
                scored = scorer.score_text(task, texts, last)
                if scored is not None:
                    known[texts] = scored
            return known.get(texts)

        return rewarded

    def _add_credit(
        self, diagnostics: CreditDiagnostics, node: Node, agent: int, rewarded: Rewarded | None, limit: int | None
    ) -> None:
        """Add an agent's advantages at a node, and the replays of its completions if their rewards are known."""
        settings = self._config.agents[agent]
        advantages: list[float] = []
        compares_runs = self._config.training.critic == "none" and not node.replays
        if compares_runs and not needs_whole_batch(settings):
            group = build_group(node, agent, self._config)
            advantages = group_advantages(group, settings, self._config.training)
            diagnostics.add_advantages(advantages)
        if rewarded is None:
            return
        replayed = replays(node, agent, rewarded, limit)
        diagnostics.add_replays(replayed)
        if replayed is None or not advantages:
            return
        # An advantage is comparable with replayed rewards if it is of the node's own rewards, one per answer.
        returns_are_rewards = self._config.training.handoff != "all" or not node.children
        if returns_are_rewards and len(node.joint_actions) == len(node.group(agent)):
            diagnostics.add_credit(agent, advantages, replayed)


def first_nodes(episode: Episode) -> list[Node]:
    """Return the first node of each turn: all nodes of a chain, and one branch of a tree."""
    nodes: list[Node] = []
    node = episode.root
    while node is not None:
        nodes.append(node)
        first = min(node.children, default=-1)
        node = node.children.get(first)
    return nodes


def means(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean of every metric that all rows have: a mean over some tasks would be of a selection."""
    if not rows:
        return {}
    metrics: dict[str, float] = {}
    for name in rows[0]:
        values = [row[name] for row in rows if name in row]
        if len(values) == len(rows):
            metrics[name] = fmean(values)
    return metrics
