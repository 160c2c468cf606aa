"""Training scenes for the base policy: prompts of a run, each with demonstrations.

The environment and the external modes write the prompts, with feedback from executed programs, so the prompts of a run
have the distribution of the training data.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from marl_ray.config import ExternalConfig
from marl_ray.core.chat import as_text
from marl_ray.core.episode import Task
from marl_ray.environments.code_generation import CodeGeneration
from marl_ray.environments.code_generation.attempt import CodeAttempt
from marl_ray.environments.code_generation.feedback import diagnose
from marl_ray.external.transition import Transition
from marl_ray.sandbox import ExecutionReport, Program
from tools.toy.demonstrations import PERFECT, Role
from tools.toy.sets import ToySet

Run = Callable[[list[Program]], list[ExecutionReport]]

TEAMS: tuple[tuple[Role, ...], ...] = (("aux", "main"), ("single",))
TEAM_WEIGHTS = (0.8, 0.2)

AUTHOR_WEIGHTS = (0.6, 0.15, 0.25)
"""Shares of first-turn, second-turn and perfect demonstrations among the answers that a second turn revises. Training
improves turn 1, so good answers must be in the distribution too."""


@dataclass(frozen=True, slots=True)
class Scene:
    """One prompt with demonstrated responses."""

    prompt: str
    responses: tuple[str, ...]


def as_task(problem: Any) -> Task:
    """Return the problem as a task of the environment."""
    key = "-".join(map(str, problem.key))
    return Task(f"toy/{key}", problem.prompt, {"entry_point": problem.entry_point, "tests": problem.tests()})


def first_scenes(
    chosen: ToySet, problems: Sequence[Any], count: int, demonstrations: int, rng: random.Random
) -> list[Scene]:
    """Return about `count` first-turn scenes of random problems and teams."""
    scenes: list[Scene] = []
    by = chosen.demonstrator
    while len(scenes) < count:
        problem = rng.choice(problems)
        (team,) = rng.choices(TEAMS, TEAM_WEIGHTS)
        for role, prompt in zip(team, CodeGeneration(len(team)).first_prompts(as_task(problem)), strict=True):
            texts = [by.attempt(problem, role, by.FIRST_TURN, rng).text for _ in range(demonstrations)]
            scenes.append(Scene(prompt, tuple(texts)))
    return scenes


@dataclass(frozen=True, slots=True)
class _FirstTurn:
    """A simulated first turn; `attempts` are the demonstrations."""

    problem: Any
    attempts: list[Any]
    config: ExternalConfig
    environment: CodeGeneration
    joint: CodeAttempt


def second_scenes(
    chosen: ToySet, problems: Sequence[Any], count: int, demonstrations: int, rng: random.Random, run: Run
) -> list[Scene]:
    """Return about `count` second-turn scenes. `run` executes each distinct joint program once."""
    turns: list[_FirstTurn] = []
    by, planned = chosen.demonstrator, 0
    while planned < count:
        problem = rng.choice(problems)
        (team,) = rng.choices(TEAMS, TEAM_WEIGHTS)
        (skill,) = rng.choices((by.FIRST_TURN, by.SECOND_TURN, PERFECT), AUTHOR_WEIGHTS)
        (config,) = rng.choices([config for _, config in chosen.modes], [weight for weight, _ in chosen.modes])
        attempts = [by.attempt(problem, role, skill, rng) for role in team]
        environment = CodeGeneration(len(team), sandbox_slice=config.sandbox_slice)
        joint = environment.attempt(as_task(problem), [a.text for a in attempts], last=True)
        turns.append(_FirstTurn(problem, attempts, config, environment, joint))
        planned += len(team)
    distinct = {turn.joint.program.key: turn.joint.program for turn in turns}
    reports = dict(zip(distinct, run(list(distinct.values())), strict=True))
    return [
        scene for turn in turns for scene in _second(chosen, turn, reports[turn.joint.program.key], demonstrations, rng)
    ]


def _second(
    chosen: ToySet, turn: _FirstTurn, report: ExecutionReport, demonstrations: int, rng: random.Random
) -> list[Scene]:
    """Return the second-turn scene of every agent for one joint action."""
    task, outcome = as_task(turn.problem), turn.environment.outcome(turn.joint, report)
    transition = Transition(turn.config, turn.environment)
    observations = asyncio.run(transition.next_prompts(task, turn.environment.first_prompts(task), turn.joint, outcome))
    by, failing = chosen.demonstrator, None
    if turn.config.mode != "plain":
        failing = not diagnose(turn.joint, report, turn.config.sandbox_slice).all_passed
    skill = by.SECOND_TURN.better(0.5) if failing is False else by.SECOND_TURN

    def again(previous: Any) -> str:
        sees = turn.config.original_prompt
        second = by.second_attempt(turn.problem, previous, skill, rng, sees_problem=sees, failing=failing)
        return str(second.text)

    return [
        Scene(as_text(prompt), tuple(again(previous) for _ in range(demonstrations)))
        for previous, prompt in zip(turn.attempts, observations.prompts, strict=True)
    ]
