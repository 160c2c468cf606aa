"""The degenerate optimum: the best answers that are equal for all tasks."""

from __future__ import annotations

from itertools import product
from statistics import fmean

from marl_ray.data.loading import load_tasks
from marl_ray.plugins.roll_call.environment import RollCall
from marl_ray.plugins.roll_call.options import RollCallConfig

PASSES = 3
"""Passes over the agents. The second one changes no answer on the bundled rows."""


def constant_reward(agents: int, team: str, split: str = "eval") -> float:
    """Return the mean reward of constant answers on the bundled rows, by coordinate ascent over the agents."""
    environment = RollCall(agents, RollCallConfig(team=team))  # type: ignore[arg-type]
    tasks = load_tasks("bundled:roll-call", split, None)
    rows = tasks[0].fields["rows"]
    letters = sorted({letter for task in tasks for row in task.fields["rows"] for letter in row})
    candidates = [" ".join(answer) for answer in product(letters, repeat=len(rows[0]))]
    answers = [candidates[0]] * agents

    def reward(tried: list[str]) -> float:
        outcomes = [environment.outcome(environment.attempt(task, tried, last=True), None) for task in tasks]
        return fmean(outcome.reward for outcome in outcomes)

    for _ in range(PASSES):
        for agent in range(agents):
            tried = [[*answers[:agent], candidate, *answers[agent + 1 :]] for candidate in candidates]
            answers = max(tried, key=reward)
    return reward(answers)
