"""One evaluation: its checks, its episodes, and the files it writes.

| file | contents |
|---|---|
| evaluation.json | the request, and the means of each model and all differences, with intervals |
| tasks.jsonl | one line per model and task: its metrics |
| episodes.jsonl | with --episodes: one line per episode, as in a run folder |
| config.yaml | the resolved config |
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

from marl_ray.actors.sandbox_settings import check_local_machine, check_sandbox
from marl_ray.config import Config, to_yaml
from marl_ray.core.episode import Episode, Task
from marl_ray.core.errors import UserError
from marl_ray.core.files import expand_home, write_atomically
from marl_ray.core.text import pluralize
from marl_ray.data.loading import load_tasks
from marl_ray.environments import ENVIRONMENTS
from marl_ray.evaluation.episode_sampling import EvaluationPlan, sample_episodes
from marl_ray.evaluation.merged_adapters import check_adapter, merged_adapters
from marl_ray.evaluation.model_sources import (
    EvaluatedModel,
    describe_weights,
    evaluated_models,
    find_model_sources,
    single_agent,
)
from marl_ray.evaluation.protocols import PROTOCOLS, REORDERING, SINGLE
from marl_ray.evaluation.results import (
    EvaluationSummary,
    TaskMetrics,
    measure_task,
    model_table,
    summarise,
    summary_to_json,
    swap_matrix,
)
from marl_ray.external.transition import Transition
from marl_ray.models.names import check_model
from marl_ray.telemetry.metrics import episode_record

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EvaluationRequest:
    """The arguments of `marl-ray eval`."""

    models: Sequence[str]
    split: str | None
    samples: int
    ks: Sequence[int]
    protocol: str
    swap: bool
    folder: Path
    episodes: bool


def run_evaluation(config: Config, request: EvaluationRequest) -> Iterator[str]:
    """Check the request, sample the episodes, write the results, and yield the lines to print.

    Raises UserError, and KeyboardInterrupt when it is stopped; models that are done keep their results.
    """
    plan = plan_evaluation(config, request)
    folder = _new_folder(request.folder)
    results: dict[str, list[TaskMetrics]] = {}

    def on_model_done(model: EvaluatedModel, episodes: list[list[Episode]]) -> None:
        results[model.label] = tasks = [measure_task(each, model.config, request.ks) for each in episodes]
        _append(folder / "tasks.jsonl", ({"model": model.label} | asdict(task) for task in tasks))
        if request.episodes:
            records = ({"model": model.label} | episode_record(one) for each in episodes for one in each)
            _append(folder / "episodes.jsonl", records)
        for warning in _missing_data(model.label, tasks):
            logger.warning(warning)

    write_atomically(folder / "config.yaml", to_yaml(config).encode())
    try:
        with merged_adapters(plan) as merged:
            sample_episodes(merged, on_model_done)
    except BaseException as error:
        if not results:
            _remove(folder)
        if isinstance(error, KeyboardInterrupt):
            done = f"{len(results)} of {pluralize(len(plan.models), 'model')} evaluated"
            logger.info(f"stopped: {done}" + (f"; their tasks are in {folder / 'tasks.jsonl'}" if results else ""))
        raise
    summary = summarise(results, config.seed)
    write_atomically(folder / "evaluation.json", json.dumps(_to_json(request, plan, summary), indent=1).encode())
    yield from model_table(summary)
    if request.swap and config.num_agents == 2:
        labels = list(dict.fromkeys(model.sources[0] for model in plan.models))
        yield from ("", *swap_matrix(summary, labels))
    sizes = f"{pluralize(len(plan.tasks), 'task')}, {pluralize(plan.samples, 'sample')} each"
    yield f"{sizes}; in brackets 95 % intervals over tasks; results in {folder}"


def plan_evaluation(config: Config, request: EvaluationRequest) -> EvaluationPlan:
    """Check a request before any actor starts. Raises UserError."""
    if request.protocol not in PROTOCOLS:
        raise UserError(f"unknown protocol {request.protocol!r}: there are {', '.join(PROTOCOLS)}")
    if request.samples < max(request.ks):
        raise UserError(f"pass@{max(request.ks)} needs as many samples, there are {request.samples}: raise --samples")
    if config.evaluation.eval_temperature == 0 and request.samples > 1:
        raise UserError("eval_temperature is 0, so all samples of a task are equal: set --samples 1, or raise it")
    sources = find_model_sources(request.models, config)
    models = evaluated_models(sources, config, request.swap)
    if request.protocol == SINGLE:
        if request.swap:
            raise UserError("--swap needs several agents, and protocol single has one: remove one of them")
        models = [single_agent(model) for model in models]
    elif config.num_agents == 1 and request.protocol != "parallel":
        raise UserError(f"protocol {request.protocol} is for several agents, and the config has one")
    environments = [ENVIRONMENTS.get(config.environment).from_config(model.config) for model in models]
    for environment in environments:
        Transition(config.external, environment)
    check_sandbox(config)
    names = list(dict.fromkeys(agent.name for model in models for agent in model.config.agents))
    adapters = {name: source.adapters[name] for source in sources for name in names if name in source.adapters}
    for name in adapters:
        check_adapter(name)
    for name in dict.fromkeys(adapters.get(name, name) for name in names):
        check_model(name, config.model)
    tasks = _tasks(config, request.split)
    for environment, task in product(environments, tasks):
        environment.check_task(task)
        if request.protocol in REORDERING and len(environment.order(task)) > 1:
            raise UserError(
                f"protocol {request.protocol} needs agents that respond at the same time, and environment "
                f"{config.environment} has an order of its own: use parallel, which keeps this order"
            )
    check_local_machine(config)
    return EvaluationPlan(config, models, tasks, request.samples, request.protocol, adapters)


def _tasks(config: Config, split: str | None) -> list[Task]:
    """Return the tasks of the split, by default the tasks of training's evaluations."""
    dataset = config.dataset
    if split is not None:
        return load_tasks(dataset.name, split, dataset.type)
    if dataset.eval_split is None:
        raise UserError("the config has no dataset.eval_split: give --split")
    return load_tasks(dataset.name, dataset.eval_split, dataset.type)[: config.evaluation.eval_num_samples]


def _new_folder(path: Path) -> Path:
    path = expand_home(path).absolute()
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"output folder {path} cannot be created ({error.strerror}): give another --output") from None
    if any(path.iterdir()):
        raise UserError(f"output folder {path} is not empty: give another --output")
    return path


def _remove(folder: Path) -> None:
    (folder / "config.yaml").unlink(missing_ok=True)
    with suppress(OSError):  # another process has put a file there
        folder.rmdir()


def _missing_data(label: str, tasks: Sequence[TaskMetrics]) -> Iterator[str]:
    """Yield a line per reason for which episodes are missing from the metrics."""
    samples = sum(task.samples for task in tasks)
    for name, why in (("too_long_prompts", "a prompt was too long"), ("infra_errors", "the sandbox gave no verdict")):
        count = sum(getattr(task, name) for task in tasks)
        if count:
            yield f"{label}: {count} of {samples} episodes ended early ({why}): later turns are without them"


def _to_json(request: EvaluationRequest, plan: EvaluationPlan, summary: EvaluationSummary) -> dict[str, Any]:
    return {
        "tasks": len(plan.tasks),
        "split": request.split or plan.config.dataset.eval_split,
        "samples": plan.samples,
        "protocol": plan.protocol,
        "seed": plan.config.seed,
        "weights": {model.label: describe_weights(model) for model in plan.models},
    } | summary_to_json(summary)


def _append(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    with path.open("a") as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
