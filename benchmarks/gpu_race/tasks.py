"""Prompts and the reward of the race, the same for this system and its peers. Only the standard library is imported,
since peers have an interpreter of their own."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

TASKS = 64
WORDS = ("red", "green", "blue", "one", "two", "three", "call", "return", "helper", "main")
REVISION = "Improve your answer."


def _prompt(number: int) -> str:
    """Return a text of about 200 tokens."""
    return " ".join(WORDS[(number * word) % len(WORDS)] for word in range(1, 90))


PROMPTS = tuple(_prompt(number) for number in range(TASKS))
SHORT_PROMPTS = tuple(" ".join(prompt.split()[:62]) for prompt in PROMPTS)
"""Prompts of about 140 tokens, as in the tags example."""


def second_prompt(first: str) -> str:
    """Return the prompt of a second turn. The previous answer is left out, so that the length does not depend on it."""
    return f"{first}\n\n{REVISION}\n"


def checksum(answers: Sequence[str]) -> float:
    """Return a checksum of all answers in [0, 1), so that hardly any completion has advantage 0.

    This system skips completions with advantage 0 and its peers compute them, so such completions would be less work.
    """
    return zlib.crc32("\0".join(answers).encode()) / 2**32
