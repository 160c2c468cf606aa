"""The environment of the race: two agents that answer the same prompts for one reward."""

from __future__ import annotations

import marl_ray as mr
from benchmarks.gpu_race.tasks import PROMPTS, checksum


def reward(prompt: str, answers: list[str]) -> float:
    return checksum(answers)


environment = mr.RewardEnvironment(prompts=list(PROMPTS), reward=reward, agents=["first", "second"])
