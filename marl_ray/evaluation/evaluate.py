"""One evaluation: checks before anything starts, who plays, and what is left on disk.

| file | holds |
|---|---|
| evaluation.json | what was asked, and each model's means and all differences, with intervals |
| tasks.jsonl | a line a model and task: its numbers |
| episodes.jsonl | if asked for: a line an episode, as in a run's folder |
| config.yaml | everything resolved |
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
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
from marl_ray.evaluation.episode_sampling import EvaluationPlan, evaluate
from marl_ray.evaluation.merged_adapters import check_adapter, merged
from marl_ray.evaluation.model_sources import (
    EvaluatedModel,
    describe_weights,
    evaluated_models,
    find_model_sources,
    single_agent,
)
from marl_ray.evaluation.protocols import PROTOCOLS, REORDERING, SINGLE
from marl_ray.evaluation.tables import matrix, table
from marl_ray.evaluation.task_metrics import EvaluationSummary, TaskMetrics, measure, plain, summarise
from marl_ray.external.transition import Transition
from marl_ray.models.names import check_model
from marl_ray.telemetry.episode_records import episode_record

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EvaluationRequest:
    """What a person asks for; see `marl-ray eval --help`."""

    models: Sequence[str]
    split: str | None
    samples: int
    ks: Sequence[int]
    protocol: str
    swap: bool
    folder: Path
    episodes: bool


def run(config: Config, request: EvaluationRequest) -> Iterator[str]:
    """Check, play, measure and write; gives the lines to print. Raises UserError; KeyboardInterrupt when stopped."""
    asked = check(config, request)
    folder = _new_folder(request.folder)
    measured: dict[str, list[TaskMetrics]] = {}

    def hear(contender: EvaluatedModel, episodes: list[list[Episode]]) -> None:
        measured[contender.label] = tasks = [measure(each, contender.config, request.ks) for each in episodes]
        with (folder / "tasks.jsonl").open("a") as file:
            file.writelines(_line({"model": contender.label} | asdict(task)) for task in tasks)
        if request.episodes:
            with (folder / "episodes.jsonl").open("a") as file:
                for each in episodes:
                    file.writelines(_line({"model": contender.label} | episode_record(episode)) for episode in each)
        for warning in _missing(contender.label, tasks):
            logger.warning(warning)

    write_atomically(folder / "config.yaml", to_yaml(config).encode())
    try:
        with merged(asked) as playing:
            evaluate(playing, hear)
    except BaseException as end:
        if not measured:
            _remove(folder)
        if isinstance(end, KeyboardInterrupt):
            done = f"{len(measured)} of {pluralize(len(asked.evaluated_models), 'model')} measured"
            logger.info(f"stopped: {done}" + (f"; their tasks are in {folder / 'tasks.jsonl'}" if measured else ""))
        raise
    summary = summarise(measured, config.seed)
    write_atomically(folder / "evaluation.json", (json.dumps(_result(request, asked, summary), indent=1)).encode())
    yield from table(summary)
    if request.swap and config.num_agents == 2:
        sources = list(dict.fromkeys(contender.players[0] for contender in asked.evaluated_models))
        yield from ("", *matrix(summary, sources))
    played = f"{pluralize(len(asked.tasks), 'task')}, {pluralize(asked.samples, 'sample')} each"
    yield f"{played}; in brackets 95 % intervals over tasks; results in {folder}"


def check(config: Config, request: EvaluationRequest) -> EvaluationPlan:
    """Everything that can be looked at before anything starts. Raises UserError."""
    if request.protocol not in PROTOCOLS:
        raise UserError(f"unknown protocol {request.protocol!r}: there are {', '.join(PROTOCOLS)}")
    if request.samples < max(request.ks):
        raise UserError(f"pass@{max(request.ks)} needs as many samples, there are {request.samples}: raise --samples")
    if config.evaluation.eval_temperature == 0 and request.samples > 1:
        raise UserError("eval_temperature is 0, so all samples of a task are alike: set --samples 1, or raise it")
    sources = find_model_sources(request.models, config)
    playing = evaluated_models(sources, config, request.swap)
    if request.protocol == SINGLE:
        if request.swap:
            raise UserError("--swap needs several agents, and protocol single has one: leave one of them away")
        playing = [single_agent(contender) for contender in playing]
    elif config.num_agents == 1 and request.protocol != "parallel":
        raise UserError(f"protocol {request.protocol} is for several agents, and the config has one")
    environments = [ENVIRONMENTS.get(config.environment).from_config(contender.config) for contender in playing]
    for environment in environments:
        Transition(config.external, environment)
    check_sandbox(config)
    names = list(dict.fromkeys(agent.name for contender in playing for agent in contender.config.agents))
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
                f"protocol {request.protocol} is for agents that answer at the same time, and environment "
                f"{config.environment} has an order of its own: use parallel, which keeps to it"
            )
    check_local_machine(config)
    return EvaluationPlan(config, playing, tasks, request.samples, request.protocol, adapters)


def _tasks(config: Config, split: str | None) -> list[Task]:
    """Those of a split; if none is named, those of training's evaluations."""
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
        raise UserError(f"output folder {path} cannot be made ({error.strerror}): give another --output") from None
    if any(path.iterdir()):
        raise UserError(f"output folder {path} is not empty: give another --output")
    return path


def _remove(folder: Path) -> None:
    """An evaluation that measured nothing leaves nothing behind."""
    (folder / "config.yaml").unlink(missing_ok=True)
    with suppress(OSError):  # somebody else has put something there
        folder.rmdir()


def _missing(label: str, tasks: Sequence[TaskMetrics]) -> Iterator[str]:
    """What is not in the numbers, said."""
    samples = sum(task.samples for task in tasks)
    for name, why in (("too_long_prompts", "a prompt was too long"), ("infra_errors", "the sandbox gave no verdict")):
        count = sum(getattr(task, name) for task in tasks)
        if count:
            yield f"{label}: {count} of {samples} episodes ended early ({why}): later turns are without them"


def _result(request: EvaluationRequest, asked: EvaluationPlan, summary: EvaluationSummary) -> dict[str, Any]:
    return {
        "tasks": len(asked.tasks),
        "split": request.split or asked.config.dataset.eval_split,
        "samples": asked.samples,
        "protocol": asked.protocol,
        "seed": asked.config.seed,
        "weights": {contender.label: describe_weights(contender) for contender in asked.evaluated_models},
    } | plain(summary)


def _line(data: dict[str, Any]) -> str:
    return json.dumps(data, ensure_ascii=False) + "\n"
