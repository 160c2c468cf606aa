"""Train the base policy of small rooms, `bundled:toy-plan-path-base`: `python -m tools.toy.make_plan_path`.

The policy is a Qwen2 of 0.2 M parameters with a byte-level BPE, trained from scratch on the prompts of planners and
checkers in rooms of 4 x 4 cells, in two turns. Clean demonstrations come first: a shortest solution, or `ok` for a plan
that is right. In the noisy demonstrations that follow, an answer is as good only in some of the cases (`NOISY`), and
random moves otherwise. No room of the data set is shown. `--rooms boxes --out FOLDER`
trains a policy for rooms with a box.
"""

from __future__ import annotations

import argparse
import asyncio
import random
from dataclasses import dataclass
from pathlib import Path

import torch

from marl_ray.config import ExternalConfig
from marl_ray.core.chat import as_text
from marl_ray.core.episode import Task
from marl_ray.external.transition import Transition
from marl_ray.plugins.plan_path import PLAN_PATH_BASE_PATH
from marl_ray.plugins.plan_path.environment import PlanPath
from marl_ray.plugins.plan_path.generate import BOXES, SMALL_PATHS, Rooms
from marl_ray.plugins.plan_path.prompts import CONFIRMED
from marl_ray.plugins.plan_path.rooms import STEPS, Room, draw_room, solution, walk
from marl_ray.plugins.plan_path.rows import PLAN_PATH
from tools.toy.make_grid import make_policy
from tools.toy.scenes import Scene

LATER_TURNS = 0.3
"""Share of rooms with scenes of the second turn, whose prompts are twice as long."""
STEPS_CLEAN = 2500
STEPS_NOISY = 600
SCENES = 40000


@dataclass(frozen=True, slots=True)
class RoomKind:
    """Rooms of a base policy, and the fewest and most moves of random answers in them."""

    source: Rooms
    noise: tuple[int, int]


PATHS_4 = RoomKind(SMALL_PATHS, (2, 5))
BOXES_4 = RoomKind(BOXES, (3, 8))
KINDS = {"paths": PATHS_4, "boxes": BOXES_4}
"""By the argument `--rooms`."""


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


@dataclass(frozen=True, slots=True)
class Demonstrator:
    """Scenes of planners and checkers in rooms of a kind, with a skill."""

    kind: RoomKind
    skill: PathSkill
    rng: random.Random

    def scenes(self, count: int) -> list[Scene]:
        """Return at least `count` scenes: both turns of single planners and of pairs."""
        of_data_set = {tuple(row["room"]) for rows in self.kind.source.splits.values() for row in rows}
        found: list[Scene] = []
        while len(found) < count:
            room = self.kind.source.make(self.rng)
            rows = draw_room(room, room.start)
            if tuple(rows) not in of_data_set:
                found += self._room_scenes(PLAN_PATH.task({"room": rows}, 0), room)
        return found

    def _room_scenes(self, task: Task, room: Room) -> list[Scene]:
        environment = PlanPath(self.rng.choice((1, 2, 2)))
        best = solution(room, room.start)
        assert best, "a room with a solution"
        plan = best if self.rng.random() < 0.5 else self._random_plan()
        firsts = environment.first_prompts(task)
        found = []
        for agent, prompt in enumerate(firsts):
            found.append(self._scene(environment, task, agent, prompt, plan, best, room))
        if self.rng.random() >= LATER_TURNS:
            return found
        # The second turn follows another plan, which all agents see in its feedback.
        earlier = best if self.rng.random() < 0.5 else self._random_plan()
        answers = [" ".join(earlier), self.rng.choice((CONFIRMED, " ".join(earlier)))]
        attempt = environment.attempt(task, answers[: len(firsts)], last=False)
        transition = Transition(ExternalConfig(), environment)
        observations = asyncio.run(transition.next_prompts(task, firsts, attempt, environment.outcome(attempt, None)))
        for agent, observation in enumerate(observations.prompts):
            found.append(self._scene(environment, task, agent, as_text(observation), plan, best, room))
        return found

    def _scene(
        self,
        environment: PlanPath,
        task: Task,
        agent: int,
        prompt: str,
        plan: tuple[str, ...],
        best: tuple[str, ...],
        room: Room,
    ) -> Scene:
        """Return the scene of one agent. A checker reads `plan`."""
        chance = self.skill.plan
        good = " ".join(best)
        if agent > 0:
            prompt = as_text(environment.prompt_after(task, agent, prompt, {0: " ".join(plan)}))
            chance = self.skill.correct
            if room.is_solved(walk(room, plan).state):
                chance = self.skill.confirm
                good = CONFIRMED
        answers = []
        for _ in range(self.skill.demonstrations):
            answer = good
            if self.rng.random() >= chance:
                answer = " ".join(self._random_plan())
                if agent > 0 and self.rng.random() < 0.3:
                    answer = CONFIRMED
            answers.append(answer)
        return Scene(prompt, tuple(answers))

    def _random_plan(self) -> tuple[str, ...]:
        return tuple(self.rng.choices(list(STEPS), k=self.rng.randint(*self.kind.noise)))


def make_room_base(
    out: Path,
    kind: RoomKind,
    steps: int = STEPS_CLEAN,
    noisy_steps: int = STEPS_NOISY,
    count: int = SCENES,
    threads: int = 1,
    seed: int = 0,
) -> None:
    """Train a base policy on `count` clean scenes and as many noisy ones, and write it to the folder `out`."""
    torch.set_num_threads(threads)
    torch.manual_seed(seed)
    rng = random.Random(seed)
    stages = []
    for skill, stage_steps, peak_lr in ((CLEAN, steps, 1e-3), (NOISY, noisy_steps, 5e-4)):
        stages.append((Demonstrator(kind, skill, rng).scenes(count), stage_steps, peak_lr))
    make_policy(stages, out, seed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=PLAN_PATH_BASE_PATH)
    parser.add_argument("--rooms", choices=list(KINDS), default="paths")
    parser.add_argument("--steps", type=int, default=STEPS_CLEAN, help="steps on clean demonstrations")
    parser.add_argument("--noisy-steps", type=int, default=STEPS_NOISY)
    parser.add_argument("--scenes", type=int, default=SCENES)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if args.rooms != "paths" and args.out == PLAN_PATH_BASE_PATH:
        parser.error("the bundled policy is one of rooms with paths: name another folder with --out")
    make_room_base(args.out, KINDS[args.rooms], args.steps, args.noisy_steps, args.scenes, args.threads, args.seed)


if __name__ == "__main__":
    main()
