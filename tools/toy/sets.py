"""The bundled task sets, with the problems and training settings of their base policies."""

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
    """A module with demonstrations for a set's problems, such as `demonstrations`."""

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
"""Shares of the external modes in second-turn scenes: mostly the default, and every mode without an expert."""

HARD_MODES: tuple[tuple[float, ExternalConfig], ...] = (
    (0.55, ExternalConfig(original_prompt=True)),
    (0.15, ExternalConfig(mode="level_passed", original_prompt=True)),
    (0.10, ExternalConfig(mode="passed", original_prompt=True)),
    (0.10, ExternalConfig(mode="plain", original_prompt=True)),
    (0.10, ExternalConfig()),
)
"""Mostly with the problem repeated, because without it an agent cannot change its decomposition."""


@dataclass(frozen=True, slots=True)
class ToySet:
    """A task set. The splits `tasks` are bundled, and the base policy is trained on the splits `known`, starting from
    the model in the folder `start`, or from scratch if None."""

    tasks_path: Path
    base_path: Path
    split_problems: Callable[[], dict[str, list[Any]]]
    demonstrator: Demonstrator
    modes: tuple[tuple[float, ExternalConfig], ...]
    tasks: tuple[str, ...] = ("train", "eval")
    known: tuple[str, ...] = ("train", "spare")
    start: Path | None = None
    first: int = 12000
    """Number of first-turn scenes in the training of the base policy."""
    second: int = 9000
    """Number of second-turn scenes."""
    steps: int = 2800
    batch_size: int = 16
    """Prompts per step."""
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
"""Sets by name: `bundled:NAME` are the tasks, `bundled:NAME-base` is the base policy."""
