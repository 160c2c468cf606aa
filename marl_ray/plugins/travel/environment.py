"""Travel planning: two agents with fixed roles fill the days of one trip at the same time.

Rows have the fields of TravelPlanner (Xie et al., "TravelPlanner: A Benchmark for Real-World Planning with Language
Agents", 2024). Roles and reward follow CoMLRL's travel environment: see docs/reference/environments/travel.md, also for
the differences.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from statistics import fmean
from typing import TYPE_CHECKING, Literal, Self

from marl_ray.core.episode import Outcome, Task
from marl_ray.core.errors import UserError
from marl_ray.environments.text_environment import TextAttempt, TextEnvironment
from marl_ray.plugins.travel import prompts
from marl_ray.plugins.travel.assignments import PlanPart, read_part
from marl_ray.plugins.travel.options import TravelConfig
from marl_ray.plugins.travel.scores import PlanScores, score_plan
from marl_ray.plugins.travel.trip import Slot, Trip

if TYPE_CHECKING:
    from marl_ray.config import Config

# Weights of the levels. All but REJECTED add up to 1.
PARTIAL = 0.05
VALID = 0.04
ALL_VALID = 0.02
ROLES = 0.14
QUALITY = 0.57
RECALL = 0.08
SUCCESS = 0.10
REJECTED = 0.10
LEAST_WEIGHT = 0.08
"""Share of the levels of a plan that remains if a wish is not met at all, so that agents can still learn the rest."""
Wishes = Literal["multiplied", "added"]
MAX_LISTED = 20
"""Maximum slots in the feedback of one agent."""


@dataclass(frozen=True)
class TravelPlan(TextAttempt):
    """The parts of one joint action, and the scores of the plan that they form."""

    parts: tuple[PlanPart, ...]
    scores: PlanScores
    trip: Trip


class TravelPlanning(TextEnvironment[TravelPlan]):
    """A trip whose logistics and daily experience are planned by different agents. A single agent plans everything.
    Tasks have the field `trip`, a `Trip`."""

    def __init__(self, num_agents: int, wishes: Wishes = "multiplied") -> None:
        super().__init__(num_agents)
        self._wishes = wishes
        if num_agents > 2:
            raise UserError("environment travel has two roles: set num_agents to 1 or 2")

    @classmethod
    def from_config(cls, config: Config) -> Self:
        return cls(config.num_agents, config.section(TravelConfig).wishes)

    def roles(self, task: Task) -> list[str]:
        return prompts.roles(self.num_agents)

    def first_prompts(self, task: Task) -> list[str]:
        texts = []
        for agent in range(self.num_agents):
            text = prompts.first_prompt(task.prompt, task.fields["trip"], agent, self.num_agents)
            texts.append(text)
        return texts

    def revisions(self, task: Task) -> list[str]:
        return [prompts.revision(agent, self.num_agents) for agent in range(self.num_agents)]

    def attempt(self, task: Task, responses: Sequence[str], last: bool) -> TravelPlan:
        trip = task.fields["trip"]
        parts = []
        plan: dict[Slot, str] = {}
        for agent, response in enumerate(responses):
            part = read_part(response, agent, self._slots(trip, agent))
            parts.append(part)
            plan |= part.slots
        return TravelPlan(tuple(responses), tuple(parts), score_plan(trip, plan), trip)

    def outcome(self, attempt: TravelPlan, report: None) -> Outcome:
        scores = attempt.scores
        valid = [part.is_valid for part in attempt.parts]
        all_valid = all(valid)
        success = all_valid and scores.is_success
        weight = 1.0
        if self._wishes == "multiplied":
            weight = LEAST_WEIGHT + (1.0 - LEAST_WEIGHT) * scores.wishes_met
        levels = {
            "partial": PARTIAL * weight * scores.joint_quality,
            "valid": VALID * fmean(valid) + ALL_VALID * all_valid,
            "roles": ROLES * all_valid * weight * scores.bottleneck,
            "quality": QUALITY * all_valid * weight * scores.joint_quality,
            "recall": RECALL * all_valid * weight * scores.recall,
            "success": SUCCESS * success,
            "rejected": -REJECTED * fmean(part.rejected for part in attempt.parts),
        }
        metrics = {
            "logistics": scores.roles[0],
            "experience": scores.roles[1],
            "valid_parts": fmean(valid),
            "plan_quality": scores.quality,
            "sense_checks": fmean(value == 1 for value in scores.sense.values()),
            "wishes": fmean(scores.wishes.values()),
            "cost_share": scores.cost / attempt.trip.budget,
            "all_passed": float(success),
        }
        return Outcome(math.fsum(levels.values()), levels, metrics)

    def facts(self, attempt: TravelPlan, outcome: Outcome, mode: str, agent: int) -> list[str]:
        scores = attempt.scores
        trip = attempt.trip
        part = attempt.parts[agent]
        lines = [
            f"right: {len(scores.right)} of {len(trip.required)} fields that have to be filled",
            f"cost: {scores.cost:.0f} of {trip.budget:.0f}",
        ]
        if mode == "level_passed":
            return lines
        if part.is_valid:
            lines.append("form: right")
        else:
            lines.append("form: not one JSON object with all of your assignments")
        for prefix, checks in (("failed", scores.sense), ("not met", scores.wishes)):
            for name, value in checks.items():
                if value < 1:
                    lines.append(f"{prefix}: {name.replace('_', ' ')}")
        wrong: list[str] = []
        for slot in self._slots(trip, agent):
            if slot in trip.required and slot not in scores.right:
                day, name = slot
                problem = "wrong" if slot in part.slots else "missing"
                wrong.append(f"day {day}, {name}: {problem}")
        return [*lines, *wrong[:MAX_LISTED]]

    def _slots(self, trip: Trip, agent: int) -> list[Slot]:
        """Return the slots of an agent, by day."""
        fields = prompts.fields_of(agent, self.num_agents)
        return list(product(range(1, trip.days + 1), fields))
