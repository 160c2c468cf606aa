"""Recombined answers of evaluated models, executed and rewarded without new samples."""

from __future__ import annotations

import asyncio
import math
import operator
from collections.abc import Awaitable, Sequence
from functools import partial
from itertools import product
from statistics import fmean

from marl_ray.cooperation.recombined_answers import Answers, cooperation, crossed, first_answers
from marl_ray.cooperation.token_counts import token_counts
from marl_ray.core.concurrency import gather
from marl_ray.core.episode import Episode, Task
from marl_ray.environments import abilities
from marl_ray.environments.base import BaseEnvironment
from marl_ray.rollout.scorer import Scorer

MAX_CONCURRENT_TASKS = 64


class Recombiner:
    """Measures of cooperation of models on `tasks`. Without a scorer only tokens are counted, and nothing runs."""

    def __init__(
        self, environment: BaseEnvironment, scorer: Scorer | None, discount: float, tasks: Sequence[Task]
    ) -> None:
        self._environment = environment
        self._scorer = scorer
        self._discount = discount
        self._tasks = tasks
        self._limit = asyncio.Semaphore(MAX_CONCURRENT_TASKS)
        self._answers: dict[str, list[Answers | None]] = {}
        """By model and task, if answers are recombined."""

    async def measure(self, label: str, episodes: Sequence[Sequence[Episode]]) -> list[dict[str, float]]:
        """Return the measures of a model by task, from its episodes by task."""
        tokens: list[dict[str, float]] = []
        for of_task, task in zip(episodes, self._tasks, strict=True):
            tokens.append(token_counts(of_task, abilities.order(self._environment, task), self._discount))
        if self._scorer is None:
            return tokens
        alike = isinstance(self._scorer.environment, abilities.InterchangeableAgents)
        answers = [first_answers(of_task, alike) for of_task in episodes]
        self._answers[label] = answers
        measured = await gather(*map(partial(self._measure_task, self._scorer), self._tasks, answers))
        return list(map(operator.or_, measured, tokens))

    async def _measure_task(self, scorer: Scorer, task: Task, answers: Answers | None) -> dict[str, float]:
        if answers is None:
            return {}
        async with self._limit:
            return await cooperation(answers, partial(scorer.rewards_of, task))

    async def cross_play(self) -> dict[tuple[str, str], list[float]]:
        """Return by task the mean reward of turn 1 of agent 0 of one model with agent 1 of another, for all pairs of
        the measured models. NaN without an answer; nothing for one model, or for another number of agents than two."""
        labels = list(self._answers)
        if self._scorer is None or len(labels) < 2 or self._environment.num_agents != 2:
            return {}
        pairs = list(product(labels, labels))
        jobs: list[Awaitable[float]] = []
        for first, second in pairs:
            cross = partial(self._cross_task, self._scorer)
            jobs += map(cross, self._tasks, self._answers[first], self._answers[second])
        rewards = await gather(*jobs)
        by_pair = {}
        for number, pair in enumerate(pairs):
            start = number * len(self._tasks)
            by_pair[pair] = rewards[start : start + len(self._tasks)]
        return by_pair

    async def _cross_task(self, scorer: Scorer, task: Task, first: Answers | None, second: Answers | None) -> float:
        if first is None or second is None:
            return math.nan
        joint = crossed(first.texts, second.texts)
        if not joint:
            return math.nan
        async with self._limit:
            return fmean(await scorer.rewards_of(task, joint))
