"""Planner and checkers: agents answer one after another, and the last written plan is walked.

docs/reference/environments/plan_path.md describes prompts, rewards and feedback, and the differences from AT-GRPO's
Plan-Path and Sokoban.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from marl_ray.core.chat import Prompt, prepend
from marl_ray.core.episode import Outcome, Task
from marl_ray.environments.abilities import AnswersInOrder
from marl_ray.environments.code_generation.prompts import numbered_names
from marl_ray.environments.text_environment import TextAttempt, TextEnvironment
from marl_ray.plugins.plan_path import prompts
from marl_ray.plugins.plan_path.rooms import STEPS, Room, draw_room, read_room, solution, walk

# The largest reward of each level.
PROGRESS = 1.0
SOLVED = 1.0
SHORTEST = 0.5
WITHOUT_EFFECT = 0.1
"""Cost of a move without effect."""
MAX_WITHOUT_EFFECT = 5
"""Maximum moves without effect that cost something, so that rewards are bounded."""

Plan = tuple[str, ...]


@dataclass(frozen=True)
class CheckedPlan(TextAttempt):
    """The room and, for each agent in the order of answers, the plan that holds after its answer."""

    room: Room
    plans: tuple[Plan, ...]


class PlanPath(TextEnvironment[CheckedPlan], AnswersInOrder):
    """A planner, and checkers that read the room and the plan so far. Tasks have the field `room`, rows of symbols."""

    modes = ("level_feedback", "passed")

    def roles(self, task: Task) -> list[str]:
        return ["planner", *numbered_names("checker", self.num_agents - 1)]

    def order(self, task: Task) -> list[list[int]]:
        return [[agent] for agent in range(self.num_agents)]

    def first_prompts(self, task: Task) -> list[str]:
        return [f"{task.prompt}\n{text}\n" for text in prompts.instructions(self.num_agents)]

    def prompt_after(self, task: Task, agent: int, prompt: Prompt, answers: Mapping[int, str]) -> Prompt:
        plan = _plans([answers[earlier] for earlier in sorted(answers)])[-1]
        return prepend(f"Plan: {' '.join(plan) or '(empty)'}\n\n", prompt)

    def revisions(self, task: Task) -> list[str]:
        return [f"{task.prompt}\n{text}" for text in prompts.instructions(self.num_agents)]

    def attempt(self, task: Task, responses: Sequence[str], last: bool) -> CheckedPlan:
        plans = _plans(responses)
        answers = [" ".join(plans[0])]
        for response in responses[1:]:
            moves = prompts.read_moves(response)
            answers.append(" ".join(moves or [prompts.CONFIRMED]))
        return CheckedPlan(tuple(answers), read_room(task.fields["room"]), tuple(plans))

    def outcome(self, attempt: CheckedPlan, report: None) -> Outcome:
        """Return the reward of the last plan. An agent's own reward is the mean of that and the reward of the plan
        after its answer."""
        levels_by_plan = [plan_levels(attempt.room, plan) for plan in attempt.plans]
        levels = levels_by_plan[-1]
        reward = math.fsum(levels.values())
        rewards = []
        for levels_of_plan in levels_by_plan:
            rewards.append((math.fsum(levels_of_plan.values()) + reward) / 2)
        solved = levels["solved"] == SOLVED
        planned = levels_by_plan[0]["solved"] == SOLVED
        metrics = {
            "all_passed": float(solved),
            "shortest": float(levels["shortest"] == SHORTEST),
            "moves": float(len(attempt.plans[-1])),
            "planned": float(planned),
        }
        if self.num_agents > 1:
            confirmed = attempt.answers[1:].count(prompts.CONFIRMED)
            metrics["confirmed"] = confirmed / (self.num_agents - 1)
            metrics["mended"] = float(solved and not planned)
            metrics["broken"] = float(planned and not solved)
        return Outcome(reward, levels, metrics, rewards=tuple(rewards))

    def facts(self, attempt: CheckedPlan, outcome: Outcome, mode: str, agent: int) -> list[str]:
        """Return the room after the moves, and the number of moves without effect."""
        walked = walk(attempt.room, attempt.plans[-1])
        rows = map(" ".join, draw_room(attempt.room, walked.state))
        return ["After the plan:", *rows, f"moves without effect: {walked.without_effect}"]


def _plans(responses: Sequence[str]) -> list[Plan]:
    """Return the plan that holds after each response. A response without moves keeps the plan before it."""
    plan: Plan = ()
    plans = []
    for response in responses:
        plan = prompts.read_moves(response) or plan
        plans.append(plan)
    return plans


def plan_levels(room: Room, plan: Plan) -> dict[str, float]:
    """Return the reward of a plan by level, in total from -0.5 to 2.5.

    `progress` is the sum over steps of the change of the distance to a solution, divided by the distance at the start:
    only the last distance counts, and at least 0. The distance is the number of moves of a shortest solution.
    """
    walked = walk(room, plan)
    first = solution(room, room.start)
    left = solution(room, walked.state)
    assert first, "a task has a solution"
    progress = 0.0
    if left is not None:  # otherwise a box can never reach a goal
        progress = max(0.0, 1 - len(left) / len(first))
    solved = float(left == ())
    shortest = 0.0
    if solved:
        shortest = len(first) / walked.moves
    costly = min(walked.without_effect, MAX_WITHOUT_EFFECT)
    return {
        "progress": PROGRESS * progress,
        "solved": SOLVED * solved,
        "shortest": SHORTEST * shortest,
        "without_effect": -WITHOUT_EFFECT * costly,
    }


def best_constant(rooms: Sequence[Room], longest: int) -> tuple[Plan, float]:
    """Return the plan of at most `longest` moves that earns the most in the mean over all rooms, and that mean.

    It is the best answer that reads no room. All 4 ** (longest + 1) / 3 plans are compared in every room.
    """
    best: Plan = ()
    best_mean = -math.inf
    for length in range(1, longest + 1):
        for plan in itertools.product(STEPS, repeat=length):
            mean = fmean(math.fsum(plan_levels(room, plan).values()) for room in rooms)
            if mean > best_mean:
                best = plan
                best_mean = mean
    return best, best_mean
