"""The environment of the race: two agents that answer the same prompts for one reward."""

from __future__ import annotations

import marl_ray as mr
from benchmarks.gpu_race.tasks import PROMPTS, SHORT_PROMPTS, checksum


def reward(prompt: str, answers: list[str]) -> float:
    return checksum(answers)


AGENTS = ["first", "second"]
environment = mr.RewardEnvironment(prompts=list(PROMPTS), reward=reward, agents=AGENTS)
tags = mr.RewardEnvironment(prompts=list(SHORT_PROMPTS), reward=reward, agents=AGENTS)
