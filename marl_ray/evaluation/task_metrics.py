"""From episodes to what is reported of a model: numbers a task, their means with intervals, and differences of models.

Names are those of training's metrics (docs/reference/metrics.md): `turn_1/reward_mean`, `turn_2/level/tests`. Beside them there
are `return`, the discounted sum of an episode's rewards, and `turn_1/pass@5` where the environment says which joint
actions pass everything (its metric `all_passed`).
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from marl_ray.config import Config
from marl_ray.core.episode import Episode
from marl_ray.core.random_streams import stream_seed
from marl_ray.evaluation.statistics import Estimate, estimates, pass_at_k
from marl_ray.telemetry.metrics import count_stops, episode_metrics, expected_return

OF_GROUPS = ("reward_std", "reward_max_mean", "group_std_mean", "expected_return", "ended_early")
"""Of a turn's metrics those that speak of siblings, or of training: an episode here has one joint action a turn."""
PASSED = "all_passed"


@dataclass(frozen=True, slots=True)
class TaskMetrics:
    """One task's numbers, means over `samples` episodes; of those `too_long_prompts` ended for the model's length, and
    `infra_errors` for a failure that is not the model's, and are missing from the turns that they did not reach; the
    latter from returns too."""

    task: str
    samples: int
    too_long_prompts: int
    infra_errors: int
    numbers: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Difference:
    """What `model` has more than `reference`, task by task."""

    model: str
    reference: str
    numbers: Mapping[str, Estimate]


@dataclass(frozen=True, slots=True)
class EvaluationSummary:
    """The means of each model, by its label, and the differences of all pairs, the later less the earlier."""

    models: Mapping[str, Mapping[str, Estimate]]
    differences: Sequence[Difference]


def measure(episodes: Sequence[Episode], config: Config, ks: Sequence[int]) -> TaskMetrics:
    """Of independent episodes of one task. A turn that fewer than k episodes reached has no pass@k."""
    metrics = episode_metrics(episodes, config.credit.discount, config.rollout.num_turns)
    judged = (e.root for e in episodes if e.root is not None and not e.stopped_by("infra_error"))
    returns = [expected_return(root, config.credit.discount) for root in judged]
    numbers = {"return": statistics.fmean(returns)} if returns else {}
    for turn in range(config.rollout.num_turns):
        name = f"turn_{turn + 1}/"
        outcomes = [a.outcome for e in episodes for _, n in e.nodes() if n.turn == turn for a in n.joint_actions]
        passed = [outcome.metrics[PASSED] == 1.0 for outcome in outcomes if PASSED in outcome.metrics]
        numbers |= {f"{name}pass@{k}": pass_at_k(len(passed), sum(passed), k) for k in ks if k <= len(passed)}
        numbers |= {key: float(value) for key, value in metrics.items() if key.startswith(name)}
    numbers |= {key: float(value) for key, value in metrics.items() if not key.startswith("turn_")}
    kept = {key: value for key, value in numbers.items() if key.rpartition("/")[2] not in OF_GROUPS}
    return TaskMetrics(
        episodes[0].task.id,
        len(episodes),
        count_stops(episodes, "prompt_too_long"),
        count_stops(episodes, "infra_error"),
        kept,
    )


def summarise(measured: Mapping[str, Sequence[TaskMetrics]], seed: int) -> EvaluationSummary:
    """Of models, by label, on the same tasks in the same order. All are resampled together."""
    names = list(dict.fromkeys(name for tasks in measured.values() for task in tasks for name in task.numbers))
    tables = {
        label: np.array([[task.numbers.get(name, np.nan) for name in names] for task in tasks])
        for label, tasks in measured.items()
    }
    pairs = [(later, earlier) for earlier, later in itertools.combinations(measured, 2)]
    columns = [*tables.values(), *(tables[later] - tables[earlier] for later, earlier in pairs)]
    found = estimates(np.concatenate(columns, axis=1), stream_seed(seed, "bootstrap"))
    width = len(names)
    parts = [_named(names, found[start : start + width]) for start in range(0, len(found), width)]
    models = dict(zip(measured, parts, strict=False))
    rest = zip(pairs, parts[len(measured) :], strict=True)
    return EvaluationSummary(models, [Difference(later, earlier, numbers) for (later, earlier), numbers in rest])


def _named(names: Sequence[str], found: Sequence[Estimate | None]) -> dict[str, Estimate]:
    return {name: estimate for name, estimate in zip(names, found, strict=True) if estimate is not None}


def plain(summary: EvaluationSummary) -> dict[str, Any]:
    """As JSON knows it."""
    return {
        "models": {label: _plain(numbers) for label, numbers in summary.models.items()},
        "differences": [
            {"model": d.model, "reference": d.reference, "numbers": _plain(d.numbers)} for d in summary.differences
        ],
    }


def _plain(numbers: Mapping[str, Estimate]) -> dict[str, Any]:
    return {name: estimate.to_dict() for name, estimate in numbers.items()}
