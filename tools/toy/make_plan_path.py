"""Train the base policy of small rooms, `bundled:toy-plan-path-base`: `python -m tools.toy.make_plan_path`.

The policy is a Qwen2 of 0.2 M parameters with a byte-level BPE, trained from scratch on the prompts of planners and
checkers in rooms of 4 x 4 cells, in two turns. Clean demonstrations come first: a shortest solution, or `ok` for a plan
that is right. In the noisy demonstrations that follow, an answer is as good only in some of the cases (`NOISY`), and
random moves otherwise. No bundled room is shown.
"""

from __future__ import annotations

import argparse
import asyncio
import random
from dataclasses import dataclass
from pathlib import Path

from marl_ray.config import ExternalConfig
from marl_ray.core.chat import as_text
from marl_ray.core.episode import Task
from marl_ray.external.transition import Transition
from marl_ray.plugins.plan_path import PLAN_PATH_BASE_PATH
from marl_ray.plugins.plan_path.environment import PlanPath
from marl_ray.plugins.plan_path.generate import SMALL_PATHS
from marl_ray.plugins.plan_path.prompts import CONFIRMED
from marl_ray.plugins.plan_path.rooms import STEPS, Room, draw_room, solution, walk
from marl_ray.plugins.plan_path.rows import PLAN_PATH
from tools.toy.make_grid import make_policy, parse_and_seed
from tools.toy.scenes import Scene

LATER_TURNS = 0.3
"""Share of rooms with scenes of the second turn, whose prompts are twice as long."""
MOVES_IN_NOISE = (2, 5)
"""Shortest and longest random answers."""


@dataclass(frozen=True, slots=True)
class PathSkill:
    """Chances of a shortest solution as a plan, of `ok` for a right plan, and of a shortest solution for a wrong one;
    and the number of demonstrations per prompt."""

    plan: float
    confirm: float
    correct: float
    demonstrations: int


CLEAN = PathSkill(1.0, 1.0, 1.0, 1)
NOISY = PathSkill(0.35, 0.5, 0.35, 4)


def scenes(count: int, skill: PathSkill, rng: random.Random) -> list[Scene]:
    """Return at least `count` scenes: both turns of single planners and of pairs."""
    bundled = {tuple(row["room"]) for rows in SMALL_PATHS.splits.values() for row in rows}
    found: list[Scene] = []
    while len(found) < count:
        room = SMALL_PATHS.make(rng)
        rows = draw_room(room, room.start)
        if tuple(rows) not in bundled:
            found += _room_scenes(PLAN_PATH.task({"room": rows}, 0), room, skill, rng)
    return found


def _room_scenes(task: Task, room: Room, skill: PathSkill, rng: random.Random) -> list[Scene]:
    environment = PlanPath(rng.choice((1, 2, 2)))
    best = solution(room, room.start)
    assert best, "a room with a solution"
    plan = best if rng.random() < 0.5 else _random_plan(rng)
    firsts = environment.first_prompts(task)
    found = [_scene(environment, task, firsts, agent, plan, best, room, skill, rng) for agent in range(len(firsts))]
    if rng.random() >= LATER_TURNS:
        return found
    # The second turn follows another plan, which all agents see in its feedback.
    earlier = best if rng.random() < 0.5 else _random_plan(rng)
    answers = [" ".join(earlier), rng.choice((CONFIRMED, " ".join(earlier)))]
    attempt = environment.attempt(task, answers[: len(firsts)], last=False)
    transition = Transition(ExternalConfig(), environment)
    observations = asyncio.run(transition.next_prompts(task, firsts, attempt, environment.outcome(attempt, None)))
    prompts = [as_text(prompt) for prompt in observations.prompts]
    for agent in range(len(firsts)):
        found.append(_scene(environment, task, prompts, agent, plan, best, room, skill, rng))
    return found


def _scene(
    environment: PlanPath,
    task: Task,
    prompts: list[str],
    agent: int,
    plan: tuple[str, ...],
    best: tuple[str, ...],
    room: Room,
    skill: PathSkill,
    rng: random.Random,
) -> Scene:
    """Return the scene of one agent. A checker reads `plan`."""
    prompt = prompts[agent]
    chance = skill.plan
    good = " ".join(best)
    if agent > 0:
        prompt = as_text(environment.prompt_after(task, agent, prompt, {0: " ".join(plan)}))
        chance = skill.correct
        if room.is_solved(walk(room, plan).state):
            chance = skill.confirm
            good = CONFIRMED
    answers = []
    for _ in range(skill.demonstrations):
        answer = good
        if rng.random() >= chance:
            answer = " ".join(_random_plan(rng))
            if agent > 0 and rng.random() < 0.3:
                answer = CONFIRMED
        answers.append(answer)
    return Scene(prompt, tuple(answers))


def _random_plan(rng: random.Random) -> tuple[str, ...]:
    return tuple(rng.choices(list(STEPS), k=rng.randint(*MOVES_IN_NOISE)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=PLAN_PATH_BASE_PATH)
    parser.add_argument("--steps", type=int, default=2500, help="steps on clean demonstrations")
    parser.add_argument("--noisy-steps", type=int, default=600)
    parser.add_argument("--scenes", type=int, default=40000)
    args = parse_and_seed(parser)
    rng = random.Random(args.seed)
    stages = []
    for skill, steps, peak_lr in ((CLEAN, args.steps, 1e-3), (NOISY, args.noisy_steps, 5e-4)):
        stages.append((scenes(args.scenes, skill, rng), steps, peak_lr))
    make_policy(stages, args.out, args.seed)


if __name__ == "__main__":
    main()
