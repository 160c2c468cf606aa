"""Scenes for the base policy: the prompts of a run, each with demonstrations of how to answer it.

The prompts come from the environment and from the external modes themselves, the feedback in them from programs
that the sandbox ran, so the base meets nothing in a run that it was not trained on.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from marl_ray.config import ExternalConfig
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
"""How often a first-turn, a second-turn and a perfect demonstrator wrote what a second turn
revises. Training makes turn 1 good, so good answers must be in distribution too."""


@dataclass(frozen=True, slots=True)
class Scene:
    """One prompt and demonstrations of how to answer it."""

    prompt: str
    responses: tuple[str, ...]


def as_task(problem: Any) -> Task:
    """The problem as the environment takes it."""
    key = "-".join(map(str, problem.key))
    return Task(f"toy/{key}", problem.prompt, {"entry_point": problem.entry_point, "tests": problem.tests()})


def first_scenes(
    chosen: ToySet, problems: Sequence[Any], count: int, demonstrations: int, rng: random.Random
) -> list[Scene]:
    """About `count` first-turn scenes, of problems and teams drawn at random."""
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
class _Act:
    """A first turn that was played; `attempts` are the demonstrators' own."""

    problem: Any
    attempts: list[Any]
    config: ExternalConfig
    environment: CodeGeneration
    joint: CodeAttempt


def second_scenes(
    chosen: ToySet, problems: Sequence[Any], count: int, demonstrations: int, rng: random.Random, run: Run
) -> list[Scene]:
    """About `count` second-turn scenes. Each distinct joint program is run once, by `run`."""
    acts: list[_Act] = []
    by, planned = chosen.demonstrator, 0
    while planned < count:
        problem = rng.choice(problems)
        (team,) = rng.choices(TEAMS, TEAM_WEIGHTS)
        (skill,) = rng.choices((by.FIRST_TURN, by.SECOND_TURN, PERFECT), AUTHOR_WEIGHTS)
        (config,) = rng.choices([config for _, config in chosen.modes], [weight for weight, _ in chosen.modes])
        attempts = [by.attempt(problem, role, skill, rng) for role in team]
        environment = CodeGeneration(len(team), sandbox_slice=config.sandbox_slice)
        joint = environment.attempt(as_task(problem), [a.text for a in attempts], last=True)
        acts.append(_Act(problem, attempts, config, environment, joint))
        planned += len(team)
    distinct = {act.joint.program.key: act.joint.program for act in acts}
    reports = dict(zip(distinct, run(list(distinct.values())), strict=True))
    return [
        scene for act in acts for scene in _second(chosen, act, reports[act.joint.program.key], demonstrations, rng)
    ]


def _second(chosen: ToySet, act: _Act, report: ExecutionReport, demonstrations: int, rng: random.Random) -> list[Scene]:
    """The second turn of one joint action, every agent's scene."""
    task, outcome = as_task(act.problem), act.environment.outcome(act.joint, report)
    transition = Transition(act.config, act.environment)
    heard = asyncio.run(transition.next_prompts(task, act.environment.first_prompts(task), act.joint, outcome))
    by, failing = chosen.demonstrator, None
    if act.config.mode != "plain":
        failing = not diagnose(act.joint, report, act.config.sandbox_slice).all_passed
    skill = by.SECOND_TURN.better(0.5) if failing is False else by.SECOND_TURN

    def again(previous: Any) -> str:
        sees = act.config.original_prompt
        second = by.second_attempt(act.problem, previous, skill, rng, sees_problem=sees, failing=failing)
        return str(second.text)

    return [
        Scene(prompt, tuple(again(previous) for _ in range(demonstrations)))
        for previous, prompt in zip(act.attempts, heard.prompts, strict=True)
    ]
