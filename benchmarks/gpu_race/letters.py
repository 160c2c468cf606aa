"""Tasks of the race: texts, and a reward that differs between random answers."""

from __future__ import annotations

import marl_ray as mr

TASKS = 64
WORDS = ("red", "green", "blue", "one", "two", "three", "call", "return", "helper", "main")


def _prompt(number: int) -> str:
    """Return a text of about 200 tokens."""
    return " ".join(WORDS[(number * word) % len(WORDS)] for word in range(1, 90))


def distinct_letters(prompt: str, answers: list[str]) -> float:
    """Return the number of different characters in all answers, divided by 100."""
    return len(set("".join(answers))) / 100


environment = mr.RewardEnvironment(
    prompts=[_prompt(number) for number in range(TASKS)], reward=distinct_letters, agents=["first", "second"]
)
