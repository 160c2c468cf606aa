"""A run's line: what its files say of held-out tasks before and after, and of the way between."""

from __future__ import annotations

import json
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from marl_ray.data.loading import load_tasks
from tools.toy.demonstrations import PERFECT, Role
from tools.toy.hard_demonstrations import attempt
from tools.toy.hard_families import Problem, split_problems

Also = Callable[[Path, int, int], dict[str, float]]


def lines_of(path: Path) -> list[dict[str, Any]]:
    """The rows of a file of JSON lines; none where there is no file."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def measure(run: Path, drawn: str, also: Also) -> dict[str, Any]:
    """Held-out numbers `before` and `after`; `evaluations` with these two and between, [step, tokens so far, reward,
    half of its 95 % interval over tasks, share that passes]; and a point a step: [tokens so far, reward, `drawn`].

    Raises ValueError where episodes.jsonl has not all that were evaluated."""
    rows = lines_of(run / "metrics.jsonl")
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
        "before": _held_out(first, last) | also(run, 0, last),
        "after": _held_out(final, last) | also(run, final["step"], last),
        "evaluations": [evaluated(row) for row in evaluations],
        "curve": curve,
    }


def _spread(run: Path, last: int, tasks_played: int) -> dict[int, float]:
    """By step of an evaluation: half of a 95 % interval of the last turn's mean reward, over tasks."""
    of_tasks: dict[int, dict[str, list[float]]] = {}
    for episode in lines_of(run / "episodes.jsonl"):
        if episode["kind"] == "eval":
            rewards = of_tasks.setdefault(episode["step"], {}).setdefault(episode["task"], [])
            played = (node for node in episode["nodes"] if node["turn"] == last)
            rewards += (action["reward"] for node in played for action in node["joint_actions"])
    if few := [step for step, tasks in of_tasks.items() if len(tasks) != tasks_played]:
        raise ValueError(f"{run}: not all tasks of step {few[0]}'s evaluation are kept: raise output.episodes_per_step")
    means = {step: [statistics.fmean(own) for own in tasks.values() if own] for step, tasks in of_tasks.items()}
    return {step: round(1.96 * statistics.stdev(own) / len(own) ** 0.5, 4) for step, own in means.items()}


def _held_out(row: Mapping[str, Any], last: int) -> dict[str, float]:
    """Of an evaluation: mean reward and share that passes all tests in the last turn, and in the first; of the last
    turn's programs the share of which a test fails without the helper, and what they earn points for."""
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
    }
    return {name: round(row[f"eval/{key}"], 4) for name, key in names.items() if f"eval/{key}" in row}


def agreement(run: Path, step: int, last: int) -> dict[str, float]:
    """Of the hard toy set's evaluation after `step`, last turn: the share that passes all tests, of known families and
    of unseen ones; and of `pairs`, where the helper may take either of two steps and both answers are free of slips,
    the share in which helper and entry point go by the same one (`agree`), and that in which it is the first
    (`both_first`)."""
    drawn = split_problems()
    by_prompt = {problem.prompt: (split, problem) for split in ("eval", "unseen") for problem in drawn[split]}
    of_task = {task.id: by_prompt[task.prompt] for task in load_tasks("bundled:toy-hard", "eval+unseen")}
    passed: dict[str, list[bool]] = {"eval": [], "unseen": []}
    ways: list[tuple[int, ...]] = []
    for episode in lines_of(run / "episodes.jsonl"):
        if (episode["kind"], episode["step"]) != ("eval", step):
            continue
        split, problem = of_task[episode["task"]]
        for node in (node for node in episode["nodes"] if node["turn"] == last):
            for action in node["joint_actions"]:
                passed[split].append(action["levels"]["tests"] == 1.0)
                texts = [group[index] for group, index in zip(node["responses"], action["indices"], strict=True)]
                ways.append(_ways(problem, texts))
    found = {f"passed_{split}": statistics.fmean(these) for split, these in passed.items()}
    if pairs := [pair for pair in ways if len(pair) == 2]:
        found["pairs"] = len(pairs)
        found["agree"] = statistics.fmean(aux == main for aux, main in pairs)
        found["both_first"] = statistics.fmean(pair == (0, 0) for pair in pairs)
    return {name: round(value, 4) for name, value in found.items()}


def _ways(problem: Problem, texts: Sequence[str]) -> tuple[int, ...]:
    """Which step each of two agents leaves to the helper, of those who say so without a slip."""
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
