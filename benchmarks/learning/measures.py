"""The results of one run from the files of its run folder: metrics of held-out tasks, and training curves."""

from __future__ import annotations

import json
import random
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from marl_ray.core.statistics import half_width
from marl_ray.data.loading import load_tasks
from tools.toy.demonstrations import PERFECT, Role
from tools.toy.hard_demonstrations import attempt
from tools.toy.hard_families import Problem, held_out_problems

ExtraMetrics = Callable[[Path, int, int], dict[str, float]]


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a JSON Lines file; an empty list if the file does not exist."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def measure(run: Path, drawn: str, extra_metrics: ExtraMetrics) -> dict[str, Any]:
    """Return the results of a run as plain data.

    | key | value |
    |---|---|
    | `before`, `after` | metrics of held-out tasks at the first and the last evaluation |
    | `evaluations` | per evaluation: step, sampled tokens, reward, half of its 95 % interval over tasks, pass rate |
    | `curve` | per step: sampled tokens, reward, and the metric `drawn` of the last turn |

    Raises ValueError if episodes.jsonl does not contain all evaluated tasks.
    """
    rows = read_lines(run / "metrics.jsonl")
    steps = [row for row in rows if "turn_1/reward_mean" in row]
    evaluations = [row for row in rows if "eval/turn_1/reward_mean" in row]
    last = max(int(key.split("_")[1].split("/")[0]) for key in steps[0] if key.startswith("turn_"))
    tokens, curve, spent = 0, [], {0: 0}
    for row in steps:
        tokens += row["rollout/tokens"]
        spent[row["step"]] = tokens
        curve.append([tokens, round(row[f"turn_{last}/reward_mean"], 3), round(row[f"turn_{last}/{drawn}"], 3)])
    first, final = evaluations[0], evaluations[-1]
    spread = _spread(run, last, first["eval/episodes"])

    def evaluated(row: Mapping[str, Any]) -> list[float]:
        held_out = _held_out(row, last)
        return [row["step"], spent[row["step"]], held_out["reward"], spread[row["step"]], held_out["passed"]]

    return {
        "seconds": round(sum(row["time/step"] for row in steps)),
        "before": _held_out(first, last) | extra_metrics(run, 0, last),
        "after": _held_out(final, last) | extra_metrics(run, final["step"], last),
        "evaluations": [evaluated(row) for row in evaluations],
        "curve": curve,
    }


def _spread(run: Path, last: int, tasks_played: int) -> dict[int, float]:
    """Return half of the 95 % interval, over tasks, of the last turn's mean reward, by step of the evaluation."""
    rewards_by_task: dict[int, dict[str, list[float]]] = {}
    for episode in read_lines(run / "episodes.jsonl"):
        if episode["kind"] == "eval":
            rewards = rewards_by_task.setdefault(episode["step"], {}).setdefault(episode["task"], [])
            played = (node for node in episode["nodes"] if node["turn"] == last)
            rewards += (action["reward"] for node in played for action in node["joint_actions"])
    if incomplete := [step for step, tasks in rewards_by_task.items() if len(tasks) != tasks_played]:
        raise ValueError(
            f"{run}: not all tasks of step {incomplete[0]}'s evaluation are in episodes.jsonl: "
            "raise output.episodes_per_step"
        )
    means = {step: [statistics.fmean(own) for own in tasks.values() if own] for step, tasks in rewards_by_task.items()}
    return {step: round(half_width(statistics.stdev(own), len(own)), 4) for step, own in means.items()}


def _held_out(row: Mapping[str, Any], last: int) -> dict[str, float]:
    """Return the metrics of an evaluation: mean reward and pass rate in the last and the first turn; for the last turn
    also the reward levels, and the share of programs that fail a test without the helper; for the second turn the rates
    of `marl_ray.cooperation.revisions`."""
    names = {
        "reward": f"turn_{last}/reward_mean",
        "passed": f"turn_{last}/all_passed",
        "first_reward": "turn_1/reward_mean",
        "first_passed": "turn_1/all_passed",
        "needs_aux": f"turn_{last}/helper_needed",
        "aux_defined": f"turn_{last}/aux_defined",
        "main_defined": f"turn_{last}/main_defined",
        "syntax": f"turn_{last}/syntax_ok",
        "tests": f"turn_{last}/tests_passed_rate",
        "aux_called": f"turn_{last}/aux_called",
        "cells": f"turn_{last}/cells_right",
        "first_cells": "turn_1/cells_right",
        "solution": f"turn_{last}/solution_right",
        "first_solution": "turn_1/solution_right",
        "verdict": f"turn_{last}/verdict_right",
        "accepted": f"turn_{last}/accepted",
        "keep_rate": "turn_2/keep_rate",
        "fix_rate": "turn_2/fix_rate",
        "pass@2": "turn_2/first_pass@2",
    }
    return {name: round(row[f"eval/{key}"], 4) for name, key in names.items() if f"eval/{key}" in row}


def agreement(run: Path, step: int, last: int) -> dict[str, float]:
    """Return metrics of the last turn of the evaluation after `step`, on the hard toy tasks. A joint action after which
    a stop rule has ended its branch counts as one of the last turn.

    `passed_eval` and `passed_unseen` are pass rates on known and unseen problem families. `pairs` counts the programs
    of problems that can be split in two ways where both responses are free of errors; `agree` is the share in which
    both agents chose the same split, `both_first` the share in which both chose the first.
    """
    by_prompt = {problem.prompt: (split, problem) for split, own in held_out_problems().items() for problem in own}
    dataset = yaml.safe_load((run / "config.yaml").read_text(encoding="utf-8"))["dataset"]
    tasks = load_tasks(dataset["name"], dataset["eval_split"], dataset["type"])
    of_task = {task.id: by_prompt[task.prompt] for task in tasks}
    passed: dict[str, list[bool]] = {"eval": [], "unseen": []}
    choices: list[tuple[int, ...]] = []
    for episode in read_lines(run / "episodes.jsonl"):
        if (episode["kind"], episode["step"]) != ("eval", step):
            continue
        split, problem = of_task[episode["task"]]
        for node, action in _final_actions(episode, last):
            passed[split].append(action["levels"]["tests"] == 1.0)
            texts = [group[index] for group, index in zip(node["responses"], action["indices"], strict=True)]
            choices.append(_chosen_splits(problem, texts))
    found = {f"passed_{split}": statistics.fmean(values) for split, values in passed.items()}
    if pairs := [pair for pair in choices if len(pair) == 2]:
        found["pairs"] = len(pairs)
        found["agree"] = statistics.fmean(aux == main for aux, main in pairs)
        found["both_first"] = statistics.fmean(pair == (0, 0) for pair in pairs)
    return {name: round(value, 4) for name, value in found.items()}


def _final_actions(episode: Mapping[str, Any], last: int) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Yield the joint actions of the last turn, each with its node. A joint action that has ended a branch by a success
    counts as many times as the next node would have had joint actions."""
    by_path = {tuple(node["path"]): node for node in episode["nodes"]}
    for node in episode["nodes"]:
        if node["turn"] == last:
            yield from ((node, action) for action in node["joint_actions"])
    for stop in episode["stops"]:
        if stop["reason"] == "solved":
            *path, index = stop["path"]
            node = by_path[tuple(path)]
            for _ in node["joint_actions"]:
                yield node, node["joint_actions"][index]


def _chosen_splits(problem: Problem, texts: Sequence[str]) -> tuple[int, ...]:
    """Return the step that each agent assigns to the helper; an agent whose response has an error is left out."""
    if len(texts) != 2 or len(problem.family.ways) < 2:
        return ()
    rng = random.Random(0)
    roles: tuple[Role, Role] = ("aux", "main")
    return tuple(
        way
        for role, text in zip(roles, texts, strict=True)
        for way in problem.family.ways
        if text in {attempt(problem, role, PERFECT, rng, way).text for _ in range(8)}  # main has two wordings
    )
