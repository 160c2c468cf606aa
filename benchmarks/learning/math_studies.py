"""The study of solver and verifier on generated arithmetic, and its measures of choices between samples."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.learning.measures import read_lines
from benchmarks.learning.study import CONFIGS, FROZEN, JOINT, Arm, Study
from marl_ray.config import load
from marl_ray.core.episode import Outcome
from marl_ray.data.loading import load_tasks
from marl_ray.environments import ENVIRONMENTS
from marl_ray.plugins.math import ARITHMETIC_PATH, MATH_BASE_PATH

CALLS = 8
"""Calls per task of each measure of a choice: 4 answers with their verdicts, or 8 answers of one agent."""


def choices(run: Path, step: int, last: int) -> dict[str, float]:
    """Return `majority` and `best` of held-out tasks after `step`: the shares of right answers among choices that take
    CALLS calls of agents (`MathEnvironment.sample_metrics`). `choice` is the one that the agents are made for: `best`
    with a verifier, otherwise `majority`. `any` is the share of tasks with a right answer among them, which no choice
    can exceed. `told_apart` is the share of right answers that a judging verifier calls right, less that of wrong
    answers, in tasks that have both; 0 for a verdict that depends on the problem alone. Of tasks with k products,
    `right_k` is the share of right answers, and `accepted_k` the share that a judging verifier calls right."""
    config = load(run / "config.yaml", "magrpo")
    environment = ENVIRONMENTS.get(config.environment).from_config(config)
    split = config.dataset.eval_split
    assert split is not None, "the config evaluates held-out tasks"
    tasks = {task.id: task for task in load_tasks(config.dataset.name, split, config.dataset.type)}
    has_verifier = config.environment == "math" and config.num_agents > 1
    found: dict[str, list[float]] = {}
    for episode in read_lines(run / "episodes.jsonl"):
        if (episode["kind"], episode["step"]) != ("eval", step):
            continue
        for node in episode["nodes"]:
            if node["turn"] != last:
                continue
            outcomes = []
            for texts in _samples(node):
                attempt = environment.attempt(tasks[episode["task"]], texts, last=True)
                outcomes.append(environment.outcome(attempt, None))
            outcomes = outcomes[: CALLS // (config.num_agents * last)]
            compared = environment.sample_metrics(outcomes)
            compared["any"] = float(any(right for outcome in outcomes for _, right in outcome.evidence.finals))
            if has_verifier and not environment.corrects:
                compared |= _told_apart(outcomes)
                products = tasks[episode["task"]].prompt.count("Multiply")
                compared[f"right_{products}"] = _mean_metric(outcomes, "solution_right")
                compared[f"accepted_{products}"] = _mean_metric(outcomes, "accepted")
            for name, value in compared.items():
                found.setdefault(name, []).append(value)
    measures = {name: round(statistics.fmean(values), 4) for name, values in found.items()}
    measures["choice"] = measures["best" if has_verifier else "majority"]
    return measures


def _told_apart(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """Return `told_apart` of one task, or nothing if its answers are all right or all wrong."""
    accepted: dict[float, list[float]] = {0.0: [], 1.0: []}
    for outcome in outcomes:
        accepted[outcome.metrics["solution_right"]].append(outcome.metrics["accepted"])
    if not accepted[0.0] or not accepted[1.0]:
        return {}
    return {"told_apart": statistics.fmean(accepted[1.0]) - statistics.fmean(accepted[0.0])}


def _mean_metric(outcomes: Sequence[Outcome], name: str) -> float:
    return statistics.fmean(outcome.metrics[name] for outcome in outcomes)


def _samples(node: Mapping[str, Any]) -> Iterator[list[str]]:
    """Yield the texts of joint actions of which no two have a call of the same agent in common. Of the joint actions
    with the solver's followed answer, which all verifiers' siblings have read, this is the first."""
    used: set[tuple[int, int]] = set()
    for action in node["joint_actions"]:
        calls = set(enumerate(action["indices"]))
        if used & calls:
            continue
        used |= calls
        yield [node["responses"][agent][index] for agent, index in enumerate(action["indices"])]


TOY_MATH = Study(
    name="toy-math",
    config=CONFIGS / "toy_math.yaml",
    common={"magrpo.num_train_epochs": 100, "output.episodes_per_step": 128},
    groups={
        "solver and verifier": {
            JOINT: Arm("both learn, the verifier judges", {}),
            "only_solver": Arm("only the solver learns", {"agents": f"[{FROZEN}, {{}}]"}),
            "only_verifier": Arm("only the verifier learns", {"agents": f"[{{}}, {FROZEN}]"}),
            "shared": Arm("one policy for both", {"magrpo.policy": 0}),
            "corrects": Arm("the verifier corrects", {"math.verifier": "corrects"}),
            "single": Arm(
                "one agent, twice the answers",
                {"magrpo.num_agents": 1, "magrpo.num_generations": 16, "magrpo.eval_num_generations": 8},
            ),
        },
        "debate, two turns": {
            "debate": Arm(
                "two solvers read each other",
                {"environment": "math_debate", "magrpo.num_turns": 2, "magrpo.rollout_buffer_size": 8},
            ),
            "alone": Arm(
                "two solvers, told nothing",
                {
                    "environment": "math_debate",
                    "external.mode": "plain",
                    "magrpo.num_turns": 2,
                    "magrpo.rollout_buffer_size": 8,
                },
            ),
        },
    },
    files=(ARITHMETIC_PATH, MATH_BASE_PATH / "model.safetensors"),
    columns={
        "first_solution": "solver right, turn 1",
        "solution": "solver right",
        "verdict": "verdict true",
        "accepted": "said right",
        "passed": "final answer right",
        "majority": f"majority, {CALLS} calls",
        "choice": f"choice by verdict or majority, {CALLS} calls",
        "any": f"any right, {CALLS} calls",
        "told_apart": "said right of right, less of wrong answers",
    },
    compared=("passed", "choice"),
    drawn=("solution_right", "solutions that are right, last turn"),
    extra_metrics=choices,
    in_process=True,
)
"""A solver and a verifier, each with a reward of its own, beside one agent with as many calls."""
