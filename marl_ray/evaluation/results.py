"""Results of an evaluation: metrics per task, means and differences with intervals, and their tables.

Metrics have the names of training metrics (docs/reference/metrics.md). Evaluations add `return`, the discounted sum of
an episode's rewards, `turn_1/pass@5` for environments that report `all_passed`, and measures such as
`turn_1/majority@5` for environments that compare samples.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from marl_ray.config import AlgorithmConfig
from marl_ray.cooperation.evaluation_lines import matrix_lines, partner_means
from marl_ray.cooperation.revisions import passed
from marl_ray.core.episode import Episode, Outcome
from marl_ray.core.random_streams import stream_seed
from marl_ray.core.statistics import Estimate, bootstrap_estimates, describe_estimate, estimates_to_dict, pass_at_k
from marl_ray.credit.returns import expected_return
from marl_ray.environments import abilities
from marl_ray.environments.base import BaseEnvironment
from marl_ray.telemetry.metrics import count_stops, count_unscored, episode_metrics, nodes_by_turn

GROUP_METRICS = ("reward_std", "reward_max_mean", "group_std_mean", "expected_return", "ended_early")
"""Turn metrics that need sibling joint actions or training; an evaluated episode has one joint action per turn."""
COLUMN_WIDTH = 25
MAX_MODELS_COMPARED = 3
"""With more models the table has no differences; evaluation.json has all of them."""
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


def measure_task(
    episodes: Sequence[Episode],
    training: AlgorithmConfig,
    ends_solved: bool,
    ks: Sequence[int],
    environment: BaseEnvironment,
) -> TaskMetrics:
    """Return the metrics of independent episodes of one task, which end when the task is solved, or not. Turns reached
    by fewer than k episodes have no pass@k."""
    discount = training.discount
    num_turns = training.num_turns
    left_out = set(GROUP_METRICS)
    if ends_solved:
        left_out.remove("ended_early")
    metrics: dict[str, float] = {}
    for name, value in episode_metrics(episodes, discount, num_turns).items():
        if name.rpartition("/")[2] not in left_out:
            metrics[name] = float(value)
    numbers: dict[str, float] = {}
    returns = []
    for episode in episodes:
        incomplete = episode.stopped_by("infra_error") or episode.stopped_by("unscored")
        if episode.root is not None and not incomplete:
            returns.append(expected_return(episode.root, discount))
    if returns:
        numbers["return"] = statistics.fmean(returns)
    nodes = nodes_by_turn(episodes, num_turns, whole=False)
    for turn in range(num_turns):
        verdicts = []
        outcomes = []
        for node in nodes.get(turn, ()):
            verdicts += [passed(action) for action in node.joint_actions]
            outcomes += [action.outcome for action in node.joint_actions]
        known = [verdict for verdict in verdicts if verdict is not None]
        for k in ks:
            if k <= len(known):
                numbers[f"turn_{turn + 1}/pass@{k}"] = pass_at_k(len(known), sum(known), k)
            if k == 1:
                continue  # nothing to choose from
            for name, value in _mean_sample_metrics(environment, outcomes, k).items():
                numbers[f"turn_{turn + 1}/{name}@{k}"] = value
        # The order of a table's lines: pass@k, then the turn's other metrics.
        for name, value in metrics.items():
            if name.startswith(f"turn_{turn + 1}/"):
                numbers[name] = value
    return TaskMetrics(
        task=episodes[0].task.id,
        samples=len(episodes),
        too_long_prompts=count_stops(episodes, "prompt_too_long"),
        infra_errors=count_stops(episodes, "infra_error"),
        unscored=count_unscored(episodes),
        numbers=numbers | metrics,
    )


def _mean_sample_metrics(environment: BaseEnvironment, outcomes: Sequence[Outcome], k: int) -> dict[str, float]:
    """Return the means of `sample_metrics` over the groups of k outcomes that follow each other. Groups share no
    outcome, so their mean is unbiased."""
    values: dict[str, list[float]] = {}
    for start in range(0, len(outcomes) - k + 1, k):
        for name, value in abilities.sample_metrics(environment, outcomes[start : start + k]).items():
            values.setdefault(name, []).append(value)
    return {name: statistics.fmean(of_groups) for name, of_groups in values.items()}


def summarise(results: Mapping[str, Sequence[TaskMetrics]], seed: int) -> EvaluationSummary:
    """Return means and paired differences of models, by label, on the same tasks in the same order."""
    names: dict[str, None] = {}
    """All metrics, in order of first appearance."""
    for tasks in results.values():
        for task in tasks:
            names |= dict.fromkeys(task.numbers)
    tables = {}
    for label, tasks in results.items():
        rows = []
        for task in tasks:
            rows.append([task.numbers.get(name, np.nan) for name in names])
        tables[label] = np.array(rows)
    columns = list(tables.values())
    pairs = list(itertools.combinations(results, 2))
    for earlier, later in pairs:
        columns.append(tables[later] - tables[earlier])
    # All models are resampled together, so that differences are paired by task.
    estimates = bootstrap_estimates(np.concatenate(columns, axis=1), stream_seed(seed, "bootstrap"))
    blocks = []
    for start in range(0, len(estimates), len(names)):
        block = {}
        for name, estimate in zip(names, estimates[start:], strict=False):
            if estimate is not None:
                block[name] = estimate
        blocks.append(block)
    models = dict(zip(results, blocks, strict=False))
    differences = []
    for (earlier, later), block in zip(pairs, blocks[len(results) :], strict=True):
        differences.append(Difference(later, earlier, block))
    return EvaluationSummary(models, differences)


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
    names: dict[str, None] = {}
    for numbers in models.values():
        names |= dict.fromkeys(numbers)
    columns = dict(models)
    if len(models) <= MAX_MODELS_COMPARED:
        for difference in summary.differences:
            if difference.reference == first:
                columns[f"{difference.model} - {first}"] = difference.numbers
    name_width = max(map(len, names), default=0)
    labels = list(columns)
    for start in range(0, len(labels), COLUMNS_PER_BLOCK):
        block = labels[start : start + COLUMNS_PER_BLOCK]
        if start:
            yield ""
        yield f"{'':<{name_width}}" + _row(block, block)
        for name in names:
            cells = []
            for label in block:
                cells.append(_cell(columns[label].get(name), signed=label not in models))
            yield f"{name:<{name_width}}" + _row(cells, block)


def swap_matrix(summary: EvaluationSummary, labels: Sequence[str]) -> Iterator[str]:
    """Yield the return of all pairs of models: rows are the model of agent 0, columns the model of agent 1."""
    yield "return, by model of agent 0 (rows) and of agent 1 (columns)"
    matrix: dict[tuple[str, str], Estimate] = {}
    for first, second in itertools.product(labels, repeat=2):
        estimates = summary.models[f"{first}+{second}"]
        if "return" in estimates:
            matrix[first, second] = estimates["return"]
    yield from matrix_lines(matrix, labels)
    yield from partner_means(matrix)


def _row(cells: Sequence[str], labels: Sequence[str]) -> str:
    """Return a line whose columns are as wide as their labels."""
    line = ""
    for cell, label in zip(cells, labels, strict=True):
        line += f"  {cell:>{max(COLUMN_WIDTH, len(label))}}"
    return line


def _cell(estimate: Estimate | None, signed: bool) -> str:
    if estimate is None:
        return "-"
    text = describe_estimate(estimate, signed)
    if not signed:
        return text
    # Spaces in place of the star keep the numbers below each other.
    return text + (" *" if estimate.excludes_zero else "  ")
