"""Scenes for the base policy: the prompts of a run, each with demonstrations of how to answer it.

The prompts come from the environment and from the external modes themselves, the feedback in them from programs
that the sandbox ran, so the base meets nothing in a run that it was not trained on.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from marl_ray.config.schema import ExternalConfig
from marl_ray.core.tree import Task
from marl_ray.environments.code_generation import CodeGeneration
from marl_ray.environments.code_generation.attempt import CodeAttempt
from marl_ray.environments.code_generation.diagnosis import diagnose
from marl_ray.external.transition import Transition
from marl_ray.sandbox import ExecutionReport, Program
from tools.toy.demonstrations import (
    FIRST_TURN,
    PERFECT,
    SECOND_TURN,
    Attempt,
    Role,
    Skill,
    attempt,
    second_attempt,
)
from tools.toy.families import Problem

Run = Callable[[list[Program]], list[ExecutionReport]]

TEAMS: tuple[tuple[Role, ...], ...] = (("aux", "main"), ("single",))
TEAM_WEIGHTS = (0.8, 0.2)

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

AUTHORS: tuple[tuple[float, Skill], ...] = ((0.6, FIRST_TURN), (0.15, SECOND_TURN), (0.25, PERFECT))
"""Who wrote what a second turn revises. Training makes turn 1 good, so good answers must be in distribution too."""


@dataclass(frozen=True, slots=True)
class Scene:
    """One prompt and demonstrations of how to answer it."""

    prompt: str
    responses: tuple[str, ...]


def as_task(problem: Problem) -> Task:
    """The problem as the environment takes it."""
    return Task(f"toy/{'-'.join(map(str, problem.key))}", problem.prompt, fields(problem))


def fields(problem: Problem) -> dict[str, str]:
    """What the environment needs of it."""
    return {"entry_point": problem.entry_point, "tests": problem.tests()}


def first_scenes(problems: Sequence[Problem], count: int, demonstrations: int, rng: random.Random) -> list[Scene]:
    """About `count` first-turn scenes, of problems and teams drawn at random."""
    scenes: list[Scene] = []
    while len(scenes) < count:
        problem = rng.choice(problems)
        (team,) = rng.choices(TEAMS, TEAM_WEIGHTS)
        for role, prompt in zip(team, CodeGeneration(len(team)).first_prompts(as_task(problem)), strict=True):
            texts = [attempt(problem, role, FIRST_TURN, rng).text for _ in range(demonstrations)]
            scenes.append(Scene(prompt, tuple(texts)))
    return scenes


def second_scenes(
    problems: Sequence[Problem], count: int, demonstrations: int, rng: random.Random, run: Run
) -> list[Scene]:
    """About `count` second-turn scenes. Each distinct joint program is run once, by `run`."""
    acts: list[tuple[Problem, list[Attempt], ExternalConfig, CodeGeneration, CodeAttempt]] = []
    planned = 0
    while planned < count:
        problem = rng.choice(problems)
        (team,) = rng.choices(TEAMS, TEAM_WEIGHTS)
        (skill,) = rng.choices([skill for _, skill in AUTHORS], [weight for weight, _ in AUTHORS])
        (config,) = rng.choices([config for _, config in MODES], [weight for weight, _ in MODES])
        attempts = [attempt(problem, role, skill, rng) for role in team]
        environment = CodeGeneration(len(team), sandbox_slice=config.sandbox_slice)
        joint = environment.attempt(as_task(problem), [a.text for a in attempts], last=True)
        acts.append((problem, attempts, config, environment, joint))
        planned += len(team)
    distinct = {joint.program.key: joint.program for *_, joint in acts}
    reports = dict(zip(distinct, run(list(distinct.values())), strict=True))
    return [
        scene
        for problem, attempts, config, environment, joint in acts
        for scene in _second(
            problem, attempts, config, environment, joint, reports[joint.program.key], demonstrations, rng
        )
    ]


def _second(
    problem: Problem,
    attempts: list[Attempt],
    config: ExternalConfig,
    environment: CodeGeneration,
    joint: CodeAttempt,
    report: ExecutionReport,
    demonstrations: int,
    rng: random.Random,
) -> list[Scene]:
    """The second turn of one joint action, every agent's scene."""
    task, outcome = as_task(problem), environment.outcome(joint, report)
    transition = Transition(config, environment)
    heard = asyncio.run(transition.next_prompts(task, environment.first_prompts(task), joint, outcome))
    failing = None
    if config.mode != "plain":
        failing = not diagnose(joint, report, config.sandbox_slice).all_passed
    skill = SECOND_TURN.better(0.5) if failing is False else SECOND_TURN
    return [
        Scene(
            prompt,
            tuple(
                second_attempt(problem, previous, skill, rng, sees_problem=config.original_prompt, failing=failing).text
                for _ in range(demonstrations)
            ),
        )
        for previous, prompt in zip(attempts, heard.prompts, strict=True)
    ]
