"""The bundled task sets, with the problems and training settings of their base policies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from marl_ray.config import ExternalConfig
from marl_ray.toy import BASE_PATH, HARD_BASE_PATH, HARD_TASKS_PATH, REVISING_BASE_PATH, TASKS_PATH
from tools.toy import demonstrations, families, hard_demonstrations, hard_families, revising_demonstrations
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

REVISING_MODES: tuple[tuple[float, ExternalConfig], ...] = (
    (0.35, ExternalConfig(original_prompt=True)),
    (0.15, ExternalConfig(mode="level_passed", original_prompt=True)),
    (0.25, ExternalConfig(mode="passed", original_prompt=True)),
    (0.15, ExternalConfig(mode="plain", original_prompt=True)),
    (0.10, ExternalConfig(mode="tools.toy.scenes:SolutionEdits", original_prompt=True)),
)
"""Always with the problem repeated, because a revision compares the function with the problem."""


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
    author_weights: tuple[float, float, float] = (0.6, 0.15, 0.25)
    """Shares of first-turn, second-turn and perfect demonstrations among the answers that a second turn revises.
    Training improves turn 1, so good answers must be in the distribution too."""
    first: int = 12000
    """Number of first-turn scenes in the training of the base policy."""
    second: int = 9000
    """Number of second-turn scenes."""
    copies: int = 0
    """Number of scenes of a first stage that only copies. Without this stage, a policy of this size writes its function
    anew instead of looking it up."""
    copy_steps: int = 0
    """Number of steps of the first stage, with twice the batch size."""
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
    "toy-revising": ToySet(
        HARD_TASKS_PATH,
        REVISING_BASE_PATH,
        hard_families.split_problems,
        revising_demonstrations,
        REVISING_MODES,
        tasks=("train", "eval", "unseen"),
        start=HARD_BASE_PATH,
        author_weights=(0.4, 0.1, 0.5),
        first=4000,
        second=14000,
        copies=20000,
        copy_steps=5000,
        steps=10000,
        batch_size=8,
        peak_lr=1.5e-3,
    ),
}
"""Sets by name: `bundled:NAME` are the tasks, `bundled:NAME-base` is the base policy. `toy-revising` has the tasks of
`toy-hard`."""
