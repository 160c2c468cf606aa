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
from marl_ray.core.episode import Outcome, Task
from marl_ray.environments.code_generation import CodeGeneration
from marl_ray.environments.code_generation.attempt import CodeAttempt
from marl_ray.environments.code_generation.feedback import diagnose
from marl_ray.external.modes import Message, Mode
from marl_ray.external.transition import Transition, next_prompt
from marl_ray.sandbox import ExecutionReport, Program
from tools.toy.demonstrations import PERFECT, Role
from tools.toy.sets import ToySet

Run = Callable[[list[Program]], list[ExecutionReport]]

TEAMS: tuple[tuple[Role, ...], ...] = (("aux", "main"), ("single",))
TEAM_WEIGHTS = (0.8, 0.2)

EDITS = "tools.toy.scenes:SolutionEdits"
"""Name of the external mode whose edits are copied by every demonstration."""


@dataclass(frozen=True, slots=True)
class Scene:
    """One prompt with demonstrated responses."""

    prompt: str
    responses: tuple[str, ...]


def as_task(problem: Any) -> Task:
    """Return the problem as a task of the environment."""
    key = "-".join(map(str, problem.key))
    fields = {"entry_point": problem.entry_point, "tests": problem.tests(), "problem": problem}
    return Task(f"toy/{key}", problem.prompt, fields)


def solutions(problem: Any, agents: int) -> tuple[str, ...]:
    """Return the functions of one or two agents that earn the full reward."""
    alone = f"def {problem.entry_point}({problem.argument}):\n    return {problem.whole()}"
    return problem.joint if agents == 2 else (alone,)


class SolutionEdits(Mode):
    """The external mode `expert_edits` with an expert that knows a solution and needs no endpoint."""

    async def messages(self, task: Task, attempt: Any, outcome: Outcome) -> tuple[list[Message], dict[str, float]]:
        edits = solutions(task.fields["problem"], self.environment.num_agents)
        return [Message(edit=edit) for edit in edits], {}


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


def copy_scenes(chosen: ToySet, problems: Sequence[Any], count: int, rng: random.Random) -> list[Scene]:
    """Return about `count` second-turn scenes that show an agent's previous function, without a problem and without
    feedback, and are answered by a copy of it."""
    scenes: list[Scene] = []
    by = chosen.demonstrator
    while len(scenes) < count:
        problem = rng.choice(problems)
        (team,) = rng.choices(TEAMS, TEAM_WEIGHTS)
        environment, task = CodeGeneration(len(team)), as_task(problem)
        texts = [by.attempt(problem, role, by.FIRST_TURN, rng).text for role in team]
        for text, instruction in zip(texts, environment.revisions(task), strict=True):
            scenes.append(Scene(next_prompt(None, text, Message(), instruction), (text,)))
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
        (skill,) = rng.choices((by.FIRST_TURN, by.SECOND_TURN, PERFECT), chosen.author_weights)
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
    if turn.config.mode == EDITS:
        copied = zip(observations.prompts, solutions(turn.problem, len(turn.attempts)), strict=True)
        return [Scene(as_text(prompt), (edit,) * demonstrations) for prompt, edit in copied]
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
