"""Measures of cooperation and of credit in training runs, without new samples.

Rewards of recombined answers are known without an execution where

- the environment has no programs (`Environment.runs_programs`);
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

from marl_ray.core.episode import Episode, JointAction, Node, Task, Texts
from marl_ray.credit.groups import build_group, group_advantages, needs_whole_batch
from marl_ray.rollout.episode_runner import EpisodeRunner
from marl_ray.telemetry.cooperation import cooperation, first_answers, token_counts
from marl_ray.telemetry.credit_replay import CreditDiagnostics, Rewarded, replays

MAX_SCORED_EPISODES = 8
"""Episodes of a training step whose recombined answers are scored in an environment without programs."""
MAX_SCORED_SAMPLES = 4
"""Joint actions per node that are recombined in these episodes."""


class StepMeasures:
    """Measures of the episodes of a training step, or of an evaluation during training."""

    def __init__(self, runner: EpisodeRunner) -> None:
        self._runner, self._environment, self._config = runner, runner.environment, runner.config

    async def measure(self, episodes: Sequence[Episode], evaluation: bool = False) -> dict[str, float]:
        """Return the metrics `cooperation/*`, `tokens/*` and `reward_per_token/*`, and for training the diagnostics of
        credit. In an environment without programs, only some episodes of a training step are recombined."""
        order = self._environment.order
        counts = (token_counts([one], order(one.task), self._config.credit.discount) for one in episodes)
        tokens = [row for row in counts if row]
        if self._config.num_agents == 1:
            return means(tokens)
        limited = not evaluation and not self._environment.runs_programs
        limit = MAX_SCORED_SAMPLES if limited else None
        parallel = [one for one in episodes if one.root is not None and len(order(one.task)) == 1]
        recombined = set(map(id, parallel[:MAX_SCORED_EPISODES] if limited else parallel))
        if not self._environment.plays_turns:
            recombined.clear()
        measured: list[dict[str, float]] = []
        credit: defaultdict[tuple[int, int], CreditDiagnostics] = defaultdict(CreditDiagnostics)
        for episode in episodes:
            for node in first_nodes(episode):
                rewarded = self._rewarded(episode.task, node) if id(episode) in recombined else None
                if rewarded is not None and node is episode.root:
                    measured.append(await self._cooperation(episode, rewarded, evaluation, limit))
                for agent in () if evaluation else range(self._config.num_agents):
                    self._add_credit(credit[agent, node.turn], node, agent, rewarded, limit)
            await asyncio.sleep(0)  # other tasks of the driver run between episodes
        found = means(tokens) | means(measured)
        for (agent, turn), diagnostics in sorted(credit.items()):
            found |= {f"agent_{agent}/turn_{turn + 1}/{name}": value for name, value in diagnostics.metrics().items()}
        return found

    async def _cooperation(
        self, episode: Episode, rewarded: Rewarded, evaluation: bool, limit: int | None
    ) -> dict[str, float]:
        setting = self._config.output.measure_cooperation
        execute = setting == "always" or (setting == "eval" and evaluation)

        async def rewards_of(joint: Sequence[Texts]) -> list[float]:
            known = {texts: action.reward for texts in joint if (action := rewarded(texts)) is not None}
            unknown = [texts for texts in joint if texts not in known]
            if unknown and execute:
                known |= zip(unknown, await self._runner.rewards_of(episode.task, unknown), strict=True)
            return [known.get(texts, math.nan) for texts in joint]

        answers = first_answers([episode], self._environment.interchangeable_agents, limit)
        return {} if answers is None else await cooperation(answers, rewards_of)

    def _rewarded(self, task: Task, node: Node) -> Rewarded:
        """Return the function from joint answers at a node to their rewards, as far as they are known."""
        last = node.turn + 1 == self._config.rollout.num_turns
        known = node.recombined | {node.texts(action): action for action in node.joint_actions}

        def rewarded(texts: Texts) -> JointAction | None:
            if texts not in known and not self._environment.runs_programs:
                scored = self._runner.score(task, texts, last)
                if scored is not None:
                    known[texts] = scored
            return known.get(texts)

        return rewarded

    def _add_credit(
        self, diagnostics: CreditDiagnostics, node: Node, agent: int, rewarded: Rewarded | None, limit: int | None
    ) -> None:
        """Add an agent's advantages at a node, and the replays of its completions if their rewards are known."""
        settings, advantages = self._config.agents[agent], list[float]()
        if self._config.credit.critic == "none" and not needs_whole_batch(settings):
            group = build_group(node, agent, self._config)
            advantages = group_advantages(group, settings, self._config.credit)
            diagnostics.add_advantages(advantages)
        if rewarded is None:
            return
        found = replays(node, agent, rewarded, limit)
        diagnostics.add_replays(found)
        returns_are_rewards = self._config.rollout.handoff != "all" or not node.children
        if (
            found is not None
            and advantages
            and returns_are_rewards
            and len(node.joint_actions) == len(node.group(agent))
        ):
            diagnostics.add_credit(agent, advantages, found)


def first_nodes(episode: Episode) -> list[Node]:
    """Return the first node of each turn: all nodes of a chain, and one branch of a tree."""
    nodes: list[Node] = []
    node = episode.root
    while node is not None:
        nodes.append(node)
        node = node.children[min(node.children)] if node.children else None
    return nodes


def means(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean of every metric that all rows have: a mean over some tasks would be of a selection."""
    names = [name for name in rows[0] if all(name in row for row in rows)] if rows else []
    return {name: fmean(row[name] for row in rows) for name in names}
