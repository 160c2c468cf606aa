"""The bundled task sets, each with what its tasks and its base policy are made from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from marl_ray.config import ExternalConfig
from marl_ray.toy import BASE_PATH, HARD_BASE_PATH, HARD_TASKS_PATH, TASKS_PATH
from tools.toy import demonstrations, families, hard_demonstrations, hard_families
from tools.toy.demonstrations import Skill


class Demonstrator(Protocol):
    """Answers to a set's problems: the module `demonstrations`, or one like it."""

    FIRST_TURN: Skill
    SECOND_TURN: Skill
    attempt: Callable[..., Any]
    second_attempt: Callable[..., Any]


MODES: tuple[tuple[float, ExternalConfig], ...] = (
    (0.56, ExternalConfig()),
    (0.14, ExternalConfig(original_prompt=True)),
    (0.05, ExternalConfig(original_prompt=True, previous_response=False)),
    (0.04, ExternalConfig(sandbox_slice="all")),
    (0.03, ExternalConfig(sandbox_slice=-2)),
    (0.04, ExternalConfig(mode="level_passed")),
    (0.03, ExternalConfig(mode="level_passed", original_prompt=True)),
    (0.03, ExternalConfig(mode="passed")),
    (0.03, ExternalConfig(mode="passed", original_prompt=True)),
    (0.03, ExternalConfig(mode="plain")),
    (0.02, ExternalConfig(mode="plain", original_prompt=True)),
)
"""How often each external mode is met: mostly the default, some of each other mode that needs no expert."""

HARD_MODES: tuple[tuple[float, ExternalConfig], ...] = (
    (0.55, ExternalConfig(original_prompt=True)),
    (0.15, ExternalConfig(mode="level_passed", original_prompt=True)),
    (0.10, ExternalConfig(mode="passed", original_prompt=True)),
    (0.10, ExternalConfig(mode="plain", original_prompt=True)),
    (0.10, ExternalConfig()),
)
"""Mostly with the problem repeated, as without it nobody can go another way than before."""


@dataclass(frozen=True, slots=True)
class ToySet:
    """One set. Problems of the splits `tasks` are what is bundled, those of `known` what the base policy was shown;
    `start` is the folder of the model that it was trained from, None for one from nothing."""

    tasks_path: Path
    base_path: Path
    split_problems: Callable[[], dict[str, list[Any]]]
    demonstrator: Demonstrator
    modes: tuple[tuple[float, ExternalConfig], ...]
    tasks: tuple[str, ...] = ("train", "eval")
    known: tuple[str, ...] = ("train", "spare")
    start: Path | None = None
    first: int = 12000
    """First-turn scenes that the base policy is shown."""
    second: int = 9000
    """Second-turn scenes."""
    steps: int = 2800
    batch_size: int = 16
    """Prompts a step."""
    peak_lr: float = 2e-3


SETS: dict[str, ToySet] = {
    "toy": ToySet(TASKS_PATH, BASE_PATH, families.split_problems, demonstrations, MODES),
    "toy-hard": ToySet(
        HARD_TASKS_PATH,
        HARD_BASE_PATH,
        hard_families.split_problems,
        hard_demonstrations,
        HARD_MODES,
        tasks=("train", "eval", "unseen"),
        start=BASE_PATH,
        first=8000,
        second=4000,
        steps=1500,
        batch_size=8,
        peak_lr=1.5e-3,
    ),
}
"""By name; `bundled:NAME` are its tasks, `bundled:NAME-base` is its policy."""
