"""Samples of an evaluation: the joint program of each episode's last turn, with its verdict."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marl_ray.config import ALGORITHMS, Config, from_tree
from marl_ray.config.values import read_yaml
from marl_ray.core.episode import Task
from marl_ray.core.errors import UserError
from marl_ray.core.files import expand_home
from marl_ray.data.loading import load_tasks, read_jsonl
from marl_ray.environments import ENVIRONMENTS
from marl_ray.environments.joint_program import joint_program


@dataclass(frozen=True, slots=True)
class EvaluationSample:
    """One episode of one model: its number among the task's episodes (from 0), the joint program of its last turn, the
    agents' prompts and answers of that turn, and its reward. `passed`: all tests passed (None: not known)."""

    model: str
    task: Task
    number: int
    program: str
    prompts: tuple[Any, ...]
    responses: tuple[str, ...]
    reward: float
    passed: bool | None


@dataclass(frozen=True, slots=True)
class FinishedEvaluation:
    """The folder of an evaluation: its config, the content of evaluation.json, and the samples (empty without
    episodes.jsonl)."""

    folder: Path
    config: Config
    content: Mapping[str, Any]
    samples: list[EvaluationSample]

    def of_model(self, model: str | None) -> list[EvaluationSample]:
        """Return the samples of a model, by default of the only one. Raises UserError."""
        labels = list(self.content["models"])
        if model is None and len(labels) > 1:
            raise UserError(f"the evaluation has several models: give --model, one of {', '.join(labels)}")
        if model is None:
            model = labels[0]
        if model not in labels:
            raise UserError(f"the evaluation has no model {model!r}, only {', '.join(labels)}")
        if not self.samples:
            raise UserError(f"{self.folder} has no episodes.jsonl: evaluate with --episodes")
        return [sample for sample in self.samples if sample.model == model]


def read_finished_evaluation(path: Path) -> FinishedEvaluation:
    """Return the evaluation in a folder of `marl-ray eval`. Raises UserError."""
    folder = expand_home(path)
    try:
        content = json.loads((folder / "evaluation.json").read_text(encoding="utf-8"))
        split = content["split"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{folder} is not the result of marl-ray eval ({type(error).__name__})") from None
    tree = read_yaml(folder / "config.yaml")
    config = from_tree(tree, next((name for name in ALGORITHMS if name in tree), ALGORITHMS[0]))
    episodes = folder / "episodes.jsonl"
    if not episodes.exists():
        return FinishedEvaluation(folder, config, content, [])
    dataset = config.dataset
    tasks = {task.id: task for task in load_tasks(dataset.name, split, dataset.type, dataset.on_bad_row)}
    environment = ENVIRONMENTS.get(config.environment).from_config(config)
    numbers: Counter[tuple[str, str]] = Counter()
    samples = []
    for _, row in read_jsonl(episodes, "episodes file"):
        if row["task"] not in tasks:
            raise UserError(f"{episodes} has the task {row['task']}, which {dataset.name} {split!r} does not have")
        task = tasks[row["task"]]
        number = numbers[row["model"], task.id]
        numbers[row["model"], task.id] += 1
        if not row["nodes"]:
            continue  # the first turn failed
        node = max(row["nodes"], key=lambda node: node["turn"])
        action = node["joint_actions"][0]
        responses = []
        for agent, place in enumerate(action["indices"]):
            responses.append(node["responses"][agent][place])
        program = joint_program(environment, task, responses)
        prompts = tuple(node["prompts"])
        reward = action["reward"]
        sample = EvaluationSample(
            row["model"], task, number, program, prompts, tuple(responses), reward, _passed(action)
        )
        samples.append(sample)
    return FinishedEvaluation(folder, config, content, samples)


def _passed(action: Mapping[str, Any]) -> bool | None:
    tests = (action.get("report") or {}).get("tests")
    if not tests:
        return None
    return all(test["status"] == "pass" for test in tests)
