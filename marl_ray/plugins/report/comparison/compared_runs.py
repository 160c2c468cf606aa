"""The compared runs: their evaluations, and their grouping into methods."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from marl_ray.config.loader import to_tree
from marl_ray.core.errors import UserError
from marl_ray.core.files import expand_home
from marl_ray.core.statistics import ComparedMethod
from marl_ray.data.loading import read_jsonl
from marl_ray.evaluation.model_sources import run_folder_of
from marl_ray.storage.resume import SavedRun
from marl_ray.storage.run_folder import RunFolder

EVALUATION = "evaluation.json"
TASKS = "tasks.jsonl"
COMPARED = re.compile(r"return|turn_\d+/(pass@\d+|reward_mean)")
"""Metrics in the table and the figure."""
OTHER_SECTIONS = ("seed", "output", "wandb", "trackio", "mlflow", "resources")
"""Settings in which the runs of one method may differ."""


@dataclass(frozen=True, slots=True)
class ComparedRun:
    """An evaluated model: its label, its metrics by task, and its run if there is one."""

    label: str
    tasks: Mapping[str, Mapping[str, float]]
    run: SavedRun | None


def is_evaluation_folder(path: Path) -> bool:
    """Return whether `marl-ray eval` has written the folder."""
    return (expand_home(path) / EVALUATION).is_file()


def read_evaluation(path: Path) -> list[ComparedRun]:
    """Return the models of an evaluation. Raises UserError for a file that marl-ray eval did not write."""
    folder = expand_home(path)
    try:
        evaluation = json.loads((folder / EVALUATION).read_text(encoding="utf-8"))
        weights: Mapping[str, Sequence[Mapping[str, Any]]] = evaluation["weights"]
        tasks: dict[str, dict[str, Mapping[str, float]]] = {label: {} for label in weights}
        for _, row in read_jsonl(folder / TASKS):
            tasks[row["model"]][row["task"]] = row["numbers"]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise UserError(f"{folder} is not the result of marl-ray eval ({type(error).__name__})") from None
    runs = []
    for label, agents in weights.items():
        runs.append(ComparedRun(label, tasks[label], _run_of(agents[0]["model"])))
    return runs


def _run_of(model: str) -> SavedRun | None:
    """Return the run of a trained model (`RUN/models/agent_0` or `RUN/checkpoints/step_000010/agent_0`)."""
    folder = run_folder_of(Path(model).parent)
    path = folder.parent if folder.name == "models" else folder
    # A relative name is a model of the hub.
    if not os.path.isabs(model) or not RunFolder(path).config.exists():
        return None
    return SavedRun.read(path)


def group_runs(runs: Sequence[ComparedRun]) -> dict[str, list[ComparedRun]]:
    """Return the runs by method, in the order of the arguments: runs whose configs differ only in seed, output and
    resources. A method is named after its first run, without a number at the end if it has several seeds."""
    groups: dict[str, list[ComparedRun]] = {}
    for run in runs:
        groups.setdefault(_method_key(run), []).append(run)
    named: dict[str, list[ComparedRun]] = {}
    for members in groups.values():
        label = members[0].label
        name = label
        if len(members) > 1:
            name = re.sub(r"[-_. ]*(seed|s)?[-_. ]?\d+$", "", label) or label
        named[label if name in named else name] = members
    return named


def _method_key(run: ComparedRun) -> str:
    if run.run is None:
        return run.label
    sections = to_tree(run.run.config())
    for name in OTHER_SECTIONS:
        sections.pop(name, None)
    return json.dumps(sections, sort_keys=True)


def make_methods(groups: Mapping[str, Sequence[ComparedRun]]) -> tuple[list[ComparedMethod], list[str]]:
    """Return one method per group and the names of the compared metrics. Raises UserError for runs that were evaluated
    on different tasks, and for two runs of a method with one seed."""
    runs = list(chain(*groups.values()))
    tasks = runs[0].tasks.keys()
    names: dict[str, None] = {}
    """All metrics, in order of first appearance."""
    for run in runs:
        if run.tasks.keys() != tasks:
            raise UserError(
                f"{run.label} was evaluated on other tasks than {runs[0].label}: evaluate both on one split"
            )
        for numbers in run.tasks.values():
            names |= dict.fromkeys(numbers)
    metrics = [name for name in names if COMPARED.fullmatch(name)]
    methods = []
    for name, members in groups.items():
        ordered = sorted(members, key=_seed_of)
        seeds = tuple(map(_seed_of, ordered))
        if len(set(seeds)) < len(seeds):
            raise UserError(f"method {name} has two runs with one seed: {', '.join(run.label for run in members)}")
        values = np.full((len(ordered), len(tasks), len(metrics)), np.nan)
        for i, run in enumerate(ordered):
            for j, task in enumerate(tasks):
                values[i, j] = [run.tasks[task].get(metric, np.nan) for metric in metrics]
        methods.append(ComparedMethod(name, seeds, values))
    return methods, metrics


def _seed_of(run: ComparedRun) -> int:
    return -1 if run.run is None else run.run.config().seed
