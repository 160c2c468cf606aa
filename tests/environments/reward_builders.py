"""Reward environments with two agents, and the outcomes of joint actions."""

from __future__ import annotations

import asyncio
from typing import Any

from marl_ray.core.episode import Outcome, Task
from marl_ray.environments.reward import RewardEnvironment, prompt_task

AGENTS = ["helper", "main"]
BY_AGENT = {"helper": "Help.", "main": "Answer."}


def environment(reward: Any = lambda prompt, answers: 1.0, **settings: Any) -> RewardEnvironment:
    return RewardEnvironment(**{"reward": reward, "agents": AGENTS, "prompts": ["Say a word."]} | settings)


def tasks_of(env: RewardEnvironment) -> list[Task]:
    return [prompt_task(row, number) for number, row in enumerate(env.splits["train"])]


def outcomes(env: RewardEnvironment, *joint: list[str]) -> list[Outcome]:
    """Return the outcomes of joint actions for the first prompt."""
    task = tasks_of(env)[0]
    env.check_task(task)
    attempts = [env.attempt(task, answers, last=False) for answers in joint]
    reports = asyncio.run(env.execute(attempts, None))  # type: ignore[arg-type]
    return [env.outcome(attempt, report) for attempt, report in zip(attempts, reports, strict=True)]
