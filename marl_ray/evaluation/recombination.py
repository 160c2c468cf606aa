"""Recombined answers of evaluated models, executed and rewarded without new samples."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from functools import partial
from statistics import fmean

from marl_ray.config import Config
from marl_ray.core.concurrency import gather
from marl_ray.core.episode import Episode, Task
from marl_ray.environments import ENVIRONMENTS
from marl_ray.environments.base import Executor
from marl_ray.external.transition import Transition
from marl_ray.rollout.episode_runner import EpisodeRunner
from marl_ray.telemetry.cooperation import Answers, cooperation, crossed, first_answers, token_counts

MAX_CONCURRENT_TASKS = 64


class Recombiner:
    """Measures of cooperation of models on `tasks`. With `enabled` false only tokens are counted, and nothing runs."""

    def __init__(self, config: Config, tasks: Sequence[Task], enabled: bool, sandbox: Executor) -> None:
        self._environment = ENVIRONMENTS.get(config.environment).from_config(config)
        transition = Transition(config.external, self._environment)
        self._runner = EpisodeRunner(config, self._environment, transition, (), sandbox)
        self._tasks, self._enabled = tasks, enabled
        self._limit = asyncio.Semaphore(MAX_CONCURRENT_TASKS)
        self._answers: dict[str, list[Answers | None]] = {}

    async def measure(self, label: str, episodes: Sequence[Sequence[Episode]]) -> list[dict[str, float]]:
        """Return the measures of a model by task, from its episodes by task."""
        tokens = [
            token_counts(each, self._environment.order(task), self._runner.config.credit.discount)
            for each, task in zip(episodes, self._tasks, strict=True)
        ]
        if not self._enabled:
            return tokens
        alike = self._environment.interchangeable_agents
        answers = self._answers[label] = [first_answers(each, alike) for each in episodes]

        async def of_task(task: Task, own: Answers | None) -> dict[str, float]:
            async with self._limit:
                return {} if own is None else await cooperation(own, partial(self._runner.rewards_of, task))

        measured = await gather(*(of_task(*pair) for pair in zip(self._tasks, answers, strict=True)))
        return [own | counted for own, counted in zip(measured, tokens, strict=True)]

    async def cross_play(self) -> dict[tuple[str, str], list[float]]:
        """Return by task the mean reward of turn 1 of agent 0 of one model with agent 1 of another, for all pairs of
        the measured models. NaN without an answer; nothing for one model, or for another number of agents than two."""
        labels = list(self._answers)
        if len(labels) < 2 or self._environment.num_agents != 2:
            return {}
        pairs = [(first, second) for first in labels for second in labels]
        rewards = await gather(*(self._cross(self._answers[first], self._answers[second]) for first, second in pairs))
        return dict(zip(pairs, rewards, strict=True))

    async def _cross(self, first: Sequence[Answers | None], second: Sequence[Answers | None]) -> list[float]:
        async def of_task(task: Task, one: Answers | None, other: Answers | None) -> float:
            joint = crossed(one.texts, other.texts) if one is not None and other is not None else []
            async with self._limit:
                return fmean(await self._runner.rewards_of(task, joint)) if joint else math.nan

        return await gather(*(of_task(*three) for three in zip(self._tasks, first, second, strict=True)))
