"""Results of an evaluation: metrics per task, means and differences with intervals, and their tables.

Metrics have the names of training metrics (docs/reference/metrics.md). Evaluations add `return`, the discounted sum of
an episode's rewards, and `turn_1/pass@5` for environments that report `all_passed`.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from marl_ray.config import Config
from marl_ray.core.episode import Episode
from marl_ray.core.random_streams import stream_seed
from marl_ray.core.statistics import Estimate, bootstrap_estimates, estimates_to_dict, pass_at_k
from marl_ray.credit.returns import expected_return
from marl_ray.telemetry.metrics import count_stops, episode_metrics, nodes_by_turn

GROUP_METRICS = ("reward_std", "reward_max_mean", "group_std_mean", "expected_return", "ended_early")
"""Turn metrics that need sibling joint actions or training; an evaluated episode has one joint action per turn."""
COLUMN_WIDTH = 25
MAX_MODELS_COMPARED = 3  # with more models the table has no differences; evaluation.json has all of them
COLUMNS_PER_BLOCK = 5


@dataclass(frozen=True, slots=True)
class TaskMetrics:
    """One task's metrics, means over `samples` episodes.

    Episodes that ended because a prompt was too long, or because the sandbox failed (`infra_errors`), are missing from
    the turns that they did not reach; the latter also from `return`. `unscored` counts the joint actions to which the
    environment gave no reward; their episodes are missing as with `infra_errors`.
    """

    task: str
    samples: int
    too_long_prompts: int
    infra_errors: int
    numbers: Mapping[str, float]
    unscored: int = 0


@dataclass(frozen=True, slots=True)
class Difference:
    """The metrics of `model` minus the metrics of `reference`, paired by task."""

    model: str
    reference: str
    numbers: Mapping[str, Estimate]


@dataclass(frozen=True, slots=True)
class EvaluationSummary:
    """The means of each model by its label, and the differences of all pairs (later minus earlier)."""

    models: Mapping[str, Mapping[str, Estimate]]
    differences: Sequence[Difference]


def measure_task(episodes: Sequence[Episode], config: Config, ks: Sequence[int]) -> TaskMetrics:
    """Return the metrics of independent episodes of one task. Turns reached by fewer than k episodes have no pass@k."""
    metrics = episode_metrics(episodes, config.training.discount, config.training.num_turns)
    complete = (e for e in episodes if not e.stopped_by("infra_error") and not e.stopped_by("unscored"))
    returns = [expected_return(e.root, config.training.discount) for e in complete if e.root is not None]
    numbers = {"return": statistics.fmean(returns)} if returns else {}
    nodes, stops = nodes_by_turn(episodes, config.training.num_turns, whole=False), config.external.stop != "never"
    for turn in range(config.training.num_turns):
        prefix = f"turn_{turn + 1}/"
        outcomes = [a.outcome for node in nodes.get(turn, ()) for a in node.joint_actions]
        passed = [outcome.metrics["all_passed"] == 1.0 for outcome in outcomes if "all_passed" in outcome.metrics]
        numbers |= {f"{prefix}pass@{k}": pass_at_k(len(passed), sum(passed), k) for k in ks if k <= len(passed)}
        numbers |= {key: float(value) for key, value in metrics.items() if key.startswith(prefix)}
    numbers |= {key: float(value) for key, value in metrics.items() if not key.startswith("turn_")}
    return TaskMetrics(
        task=episodes[0].task.id,
        samples=len(episodes),
        too_long_prompts=count_stops(episodes, "prompt_too_long"),
        infra_errors=count_stops(episodes, "infra_error"),
        unscored=sum(len(episode.unscored) for episode in episodes),
        numbers={
            key: value
            for key, value in numbers.items()
            if (name := key.rpartition("/")[2]) not in GROUP_METRICS or (stops and name == "ended_early")
        },
    )


def summarise(results: Mapping[str, Sequence[TaskMetrics]], seed: int) -> EvaluationSummary:
    """Return means and paired differences of models, by label, on the same tasks in the same order."""
    names = list(dict.fromkeys(name for tasks in results.values() for task in tasks for name in task.numbers))
    tables = {
        label: np.array([[task.numbers.get(name, np.nan) for name in names] for task in tasks])
        for label, tasks in results.items()
    }
    pairs = [(later, earlier) for earlier, later in itertools.combinations(results, 2)]
    columns = [*tables.values(), *(tables[later] - tables[earlier] for later, earlier in pairs)]
    estimates = bootstrap_estimates(np.concatenate(columns, axis=1), stream_seed(seed, "bootstrap"))
    width = len(names)
    blocks = [
        {name: e for name, e in zip(names, estimates[start : start + width], strict=True) if e is not None}
        for start in range(0, len(estimates), width)
    ]
    models = dict(zip(results, blocks, strict=False))
    differences = zip(pairs, blocks[len(results) :], strict=True)
    return EvaluationSummary(models, [Difference(later, earlier, block) for (later, earlier), block in differences])


def summary_to_json(summary: EvaluationSummary) -> dict[str, Any]:
    """Return the summary as plain data."""
    models = {}
    for label, numbers in summary.models.items():
        models[label] = estimates_to_dict(numbers)
    differences = []
    for difference in summary.differences:
        numbers = estimates_to_dict(difference.numbers)
        differences.append({"model": difference.model, "reference": difference.reference, "numbers": numbers})
    return {"models": models, "differences": differences}


def model_table(summary: EvaluationSummary) -> Iterator[str]:
    """Yield a line per metric with each model's mean and interval, and for up to MAX_MODELS_COMPARED models their
    differences from the first model; a star marks an interval that excludes zero."""
    models = summary.models
    first = next(iter(models))
    columns: dict[str, Mapping[str, Estimate]] = dict(models)
    if len(models) <= MAX_MODELS_COMPARED:
        columns |= {f"{d.model} - {first}": d.numbers for d in summary.differences if d.reference == first}
    names = list(dict.fromkeys(name for numbers in models.values() for name in numbers))
    name_width = max(map(len, names), default=0)
    labels = list(columns)
    for start in range(0, len(labels), COLUMNS_PER_BLOCK):
        block = labels[start : start + COLUMNS_PER_BLOCK]
        if start:
            yield ""
        yield f"{'':<{name_width}}" + _row(block, block)
        for name in names:
            cells = (_cell(columns[label].get(name), signed=label not in models) for label in block)
            yield f"{name:<{name_width}}" + _row(cells, block)


def swap_matrix(summary: EvaluationSummary, labels: Sequence[str]) -> Iterator[str]:
    """Yield the return of all pairs of models: rows are the model of agent 0, columns the model of agent 1."""
    yield "return, by model of agent 0 (rows) and of agent 1 (columns)"
    label_width = max(map(len, labels))
    yield f"{'':<{label_width}}" + _row(labels, labels)
    for row in labels:
        cells = (_cell(summary.models[f"{row}+{column}"].get("return"), signed=False) for column in labels)
        yield f"{row:<{label_width}}" + _row(cells, labels)


def _row(cells: Iterable[str], labels: Iterable[str]) -> str:
    return "".join(f"  {cell:>{max(COLUMN_WIDTH, len(label))}}" for cell, label in zip(cells, labels, strict=True))


def _cell(estimate: Estimate | None, signed: bool) -> str:
    if estimate is None:
        return "-"
    sign = "+" if signed else ""
    text = f"{estimate.mean:{sign}.3f}"
    if not math.isnan(estimate.low):
        text += f" [{estimate.low:{sign}.3f}, {estimate.high:{sign}.3f}]"
    return text + ((" *" if estimate.excludes_zero else "  ") if signed else "")
