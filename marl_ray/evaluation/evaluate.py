"""One evaluation: its checks, its episodes, and the files it writes.

Episodes run as in evaluations of a training run with `eval_num_generations: 1`, which equal the first sample. With one
joint action per turn, the samples of a task are independent from the first turn on, as pass@k requires.

| file | contents |
|---|---|
| evaluation.json | the request, and the means of each model and all differences, with intervals |
| tasks.jsonl | one line per model and task: its metrics |
| episodes.jsonl | with --episodes: one line per episode, as in a run folder |
| config.yaml | the resolved config |
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from itertools import chain, product, starmap
from pathlib import Path
from types import MappingProxyType
from typing import Any

from marl_ray.actors.run_actors import EvaluationActors
from marl_ray.actors.sandbox_settings import check_local_machine, check_sandbox
from marl_ray.config import Config, ConfigSource, from_keywords, to_yaml
from marl_ray.config.sections import DatasetConfig
from marl_ray.cooperation.evaluation_lines import (
    cooperation_lines,
    cross_play_estimates,
    cross_play_table,
    revision_lines,
)
from marl_ray.core.concurrency import gather
from marl_ray.core.episode import Episode, Task
from marl_ray.core.errors import UserError
from marl_ray.core.files import expand_home, write_atomically
from marl_ray.core.text import pluralize
from marl_ray.data.date_windows import within_dates
from marl_ray.data.loading import load_tasks
from marl_ray.environments import ENVIRONMENTS, abilities
from marl_ray.environments.base import Executor
from marl_ray.environments.program_environment import ProgramEnvironment
from marl_ray.evaluation.model_sources import (
    BASE,
    EvaluatedModel,
    check_models,
    evaluated_models,
    find_model_sources,
    merged_adapters,
    named_model,
    policy_config,
    run_folder_of,
    single_agent,
)
from marl_ray.evaluation.protocols import PROTOCOLS, REORDERING, SINGLE
from marl_ray.evaluation.recombination import Recombiner
from marl_ray.evaluation.requests import EvaluationRequest
from marl_ray.evaluation.results import TaskMetrics, measure_task, model_table, summarise, summary_to_json, swap_matrix
from marl_ray.evaluation.running_models import on_cluster
from marl_ray.external.transition import transition_of
from marl_ray.rollout.player import CompletionGenerator, Player
from marl_ray.rollout.scorer import Scorer
from marl_ray.rollout.turn_player import make_player
from marl_ray.rollout.unscored import check_failed_rewards
from marl_ray.storage.resume import SavedRun
from marl_ray.telemetry.episode_records import episode_record
from marl_ray.telemetry.logs import progress_bar_disabled, tqdm

logger = logging.getLogger(__name__)
MAX_CONCURRENT_EPISODES = 256
"""Enough for engines to batch, and few enough that no request waits for long."""
EARLY_ENDS = {
    "too_long_prompts": "a prompt was too long",
    "infra_errors": "the sandbox gave no verdict",
    "unscored": "the environment gave no reward",
}
"""Causes by the counts of `TaskMetrics`."""


@dataclass(frozen=True, slots=True)
class EvaluationPlan:
    """A checked evaluation: `samples` episodes of each task by each model, under one of PROTOCOLS.

    `adapters` maps the folders of models that are LoRA adapters to their base models.
    """

    config: Config
    models: Sequence[EvaluatedModel]
    tasks: Sequence[Task]
    samples: int
    protocol: str
    adapters: Mapping[str, str]
    cooperation: bool = False


OnModelDone = Callable[[EvaluatedModel, list[list[Episode]], list[dict[str, float]]], None]
"""Called with a model, its episodes by task, and its measures of cooperation by task."""
CrossPlay = dict[tuple[str, str], list[float]]
"""Mean rewards of turn 1 by task, by the models of agent 0 and of agent 1."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The results of an evaluation, which are also in the files of `path`.

    `metrics` has each model's metrics by name, as means with intervals: `metrics["base"]["return"]["mean"]`. `tasks`
    has one row per model and task. The text of the object is the table of all models.
    """

    path: Path
    metrics: Mapping[str, Mapping[str, Any]]
    tasks: Sequence[Mapping[str, Any]]
    lines: Sequence[str]

    def __str__(self) -> str:
        return "\n".join(self.lines)


def run_evaluation(config: Config, request: EvaluationRequest) -> Evaluation:
    """Check the request, sample the episodes, write the results of each model, and return them.

    Raises UserError, and KeyboardInterrupt when it is stopped.
    """
    plan = plan_evaluation(config, request)
    folder = _new_folder(request.folder)
    environment = ENVIRONMENTS.get(plan.config.environment).from_config(plan.config)
    results: dict[str, list[TaskMetrics]] = {}
    revisions: list[str] = []

    def on_model_done(
        model: EvaluatedModel, episodes: list[list[Episode]], cooperation: list[dict[str, float]]
    ) -> None:
        of_all_tasks = list(chain(*episodes))
        share = config.training.max_failed_rewards
        check_failed_rewards(of_all_tasks, f"model {model.label}", share, config.algorithm)
        tasks = []
        for of_task, measures in zip(episodes, cooperation, strict=True):
            task = measure_task(of_task, config.training, config.external.stop != "never", request.ks, environment)
            tasks.append(replace(task, numbers={**task.numbers, **measures}))
        results[model.label] = tasks
        revisions.extend(revision_lines(model.label, of_all_tasks))
        _append(folder / "tasks.jsonl", model, map(asdict, tasks))
        if request.episodes:
            _append(folder / "episodes.jsonl", model, map(episode_record, of_all_tasks))
        _warn_of_early_ends(model.label, tasks)

    write_atomically(folder / "config.yaml", to_yaml(config).encode())
    try:
        with merged_adapters(plan.models, plan.adapters, config.model) as models:
            cross_play = sample_episodes(replace(plan, models=models), on_model_done)
    except BaseException as error:
        if not results:
            (folder / "config.yaml").unlink(missing_ok=True)
            with suppress(OSError):  # another process has put a file there
                folder.rmdir()
        if isinstance(error, KeyboardInterrupt):
            written = f"; their tasks are in {folder / 'tasks.jsonl'}" if results else ""
            logger.info(f"stopped: {len(results)} of {pluralize(len(plan.models), 'model')} evaluated{written}")
        raise
    summary = summarise(results, config.seed)
    weights = {}
    for model in plan.models:
        weights[model.label] = [{"agent": i, "model": agent.name} for i, agent in enumerate(model.config.agents)]
    content = {
        "tasks": len(plan.tasks),
        "split": request.split or config.dataset.eval_split,
        "samples": plan.samples,
        "protocol": plan.protocol,
        "seed": config.seed,
        "weights": weights,
    } | summary_to_json(summary)
    matrix = cross_play_estimates(cross_play, config.seed)
    if matrix:
        cells = []
        for (first, second), estimate in matrix.items():
            cells.append({"agent_0": first, "agent_1": second, **estimate.to_dict()})
        content["cross_play"] = cells
    write_atomically(folder / "evaluation.json", json.dumps(content, indent=1).encode())
    lines = list(model_table(summary))
    if request.swap and config.num_agents == 2:
        labels = list(dict.fromkeys(model.sources[0] for model in plan.models))
        lines += ["", *swap_matrix(summary, labels)]
    if matrix:
        lines += ["", *cross_play_table(matrix)]
    if revisions:
        lines += ["", *revisions]
    lines += cooperation_lines(summary.models)
    sizes = f"{pluralize(len(plan.tasks), 'task')}, {pluralize(plan.samples, 'sample')} each"
    lines.append(f"{sizes}; in brackets 95 % intervals over tasks; results in {folder}")
    rows = []
    for label, tasks in results.items():
        for task in tasks:
            rows.append({"model": label, **asdict(task)})
    return Evaluation(folder, content["models"], rows, lines)


def _warn_of_early_ends(label: str, tasks: Sequence[TaskMetrics]) -> None:
    total = sum(task.samples for task in tasks)
    for name, why in EARLY_ENDS.items():
        count = sum(getattr(task, name) for task in tasks)
        if count:
            ended = f"{count} of {total} episodes ended early ({why})"
            logger.warning(f"{label}: {ended}: later turns are without them")


def evaluation_config(
    models: Sequence[str],
    source: ConfigSource | None = None,
    algorithm: str | None = None,
    keywords: Mapping[str, Any] = MappingProxyType({}),
    overrides: Mapping[str, Any] = MappingProxyType({}),
) -> Config:
    """Return the config of `source`, by default of the first run among the models, with keywords and overrides.

    Raises UserError.
    """
    if source is None:
        runs = [name for name in models if name != BASE and named_model(name) is None]
        if runs:
            source = SavedRun.read(run_folder_of(Path(runs[0]))).tree
        elif not keywords:
            raise UserError("no config: give --config FILE, or the --model of a run")
    keywords = {"eval_num_generations": 1, **keywords}
    return from_keywords(source, algorithm, keywords, overrides, logger.info)


def default_folder(dataset: DatasetConfig) -> Path:
    """Return a new folder name below evaluations/."""
    stamp = f"{dataset.type.replace(':', '.')}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    return Path("evaluations") / stamp


def plan_evaluation(config: Config, request: EvaluationRequest) -> EvaluationPlan:
    """Check a request before any actor starts. Raises UserError."""
    if request.protocol not in PROTOCOLS:
        raise UserError(f"unknown protocol {request.protocol!r}: there are {', '.join(PROTOCOLS)}")
    if request.samples < max(request.ks):
        raise UserError(f"pass@{max(request.ks)} needs as many samples, there are {request.samples}: raise --samples")
    if config.training.eval_temperature == 0 and request.samples > 1:
        raise UserError("eval_temperature is 0, so all samples of a task are equal: set --samples 1, or raise it")
    sources = find_model_sources(request.models, config.agents)
    models = evaluated_models(sources, config, request.swap)
    if request.protocol == SINGLE:
        if request.swap:
            raise UserError("--swap needs several agents, and protocol single has one: remove one of them")
        models = [single_agent(model) for model in models]
    elif config.num_agents == 1 and request.protocol != "parallel":
        raise UserError(f"protocol {request.protocol} is for several agents, and the config has one")
    environments = [ENVIRONMENTS.get(config.environment).from_config(model.config) for model in models]
    for environment in environments:
        transition_of(config.external, environment)
    check_sandbox(config.sandbox)
    if request.cooperation:
        _check_cooperation(request, config.num_agents)
    adapters = check_models(models, sources, config.model)
    tasks = _tasks(config.dataset, request.split, config.training.eval_num_samples)
    tasks = within_dates(tasks, request.since, request.until)
    # All models play the same kind of environment.
    by_programs = isinstance(environments[0], ProgramEnvironment)
    if by_programs and request.protocol != "parallel":
        raise UserError(f"programs play the episodes of environment {config.environment}: leave out --protocol")
    if by_programs and request.cooperation:
        raise UserError(
            f"--cooperation recombines answers, and programs play the episodes of environment {config.environment}: "
            "leave it out, or set --swap, which plays each pair of models"
        )
    for environment, task in product(environments, tasks):
        environment.check_task(task)
        if request.cooperation and len(abilities.order(environment, task)) > 1:
            raise UserError(
                f"--cooperation recombines answers, and in environment {config.environment} later agents have read the "
                "earlier answers: leave it out, or set --swap, which plays each pair of models"
            )
        if request.protocol in REORDERING and len(abilities.order(environment, task)) > 1:
            raise UserError(
                f"protocol {request.protocol} needs agents that respond at the same time, and environment "
                f"{config.environment} has an order of its own: use parallel, which keeps this order"
            )
    check_local_machine(config.agents, config.lora, config.resources, config.sandbox)
    return EvaluationPlan(config, models, tasks, request.samples, request.protocol, adapters, request.cooperation)


def _check_cooperation(request: EvaluationRequest, num_agents: int) -> None:
    if request.protocol != "parallel" or num_agents == 1:
        raise UserError(
            "--cooperation recombines answers of several agents that respond at the same time: leave it out"
        )
    if request.samples < num_agents:
        raise UserError(
            f"--cooperation takes each agent's answer from another sample: set --samples to {num_agents} or more"
        )


def sample_episodes(plan: EvaluationPlan, on_model_done: OnModelDone) -> CrossPlay:
    """Sample all episodes, on the cluster or on this machine, and return the rewards of partners from different models,
    if answers are recombined. Raises UserError, and KeyboardInterrupt when stopped."""
    cross_play: CrossPlay = {}
    with on_cluster(plan.config.output.verbose) as signals:
        signals.run(lambda: _sample_episodes(plan, on_model_done, cross_play))
    return cross_play


async def _sample_episodes(plan: EvaluationPlan, on_model_done: OnModelDone, cross_play: CrossPlay) -> None:
    actors = EvaluationActors(plan.config.resources, plan.config.sandbox)
    try:
        await actors.start()
        config = plan.models[0].config
        environment = ENVIRONMENTS.get(config.environment).from_config(config)
        scorer = Scorer(config, environment, actors.sandbox) if plan.cooperation else None
        recombiner = Recombiner(environment, scorer, config.training.discount, plan.tasks)
        for model in plan.models:
            configs = [policy_config(model, agent) for agent in range(model.config.num_agents)]
            generators = await actors.start_generators(configs)
            episodes = await _episodes_of(plan, model, generators, actors.sandbox)
            on_model_done(model, episodes, await recombiner.measure(model.label, episodes))
        cross_play |= await recombiner.cross_play()
    finally:
        await actors.close()


async def _episodes_of(
    plan: EvaluationPlan, model: EvaluatedModel, generators: Sequence[CompletionGenerator], sandbox: Executor
) -> list[list[Episode]]:
    """Return the episodes of each task, in order."""
    config = model.config
    count = len(plan.tasks) * plan.samples
    environment = ENVIRONMENTS.get(config.environment).from_config(config)
    transition = transition_of(config.external, environment)
    limit = asyncio.Semaphore(MAX_CONCURRENT_EPISODES)
    hidden = progress_bar_disabled()

    def new_player() -> Player:
        return make_player(config, environment, PROTOCOLS[plan.protocol](generators), sandbox, transition)

    shared = None if plan.protocol in REORDERING else new_player()
    with tqdm(total=count, desc=model.label, disable=hidden, dynamic_ncols=True, leave=False) as bar:

        async def run_episode(task: Task, sample: int) -> Episode:
            async with limit:
                episode = await (shared or new_player()).evaluate_task(task, 1, sample)
            bar.update()
            return episode

        try:
            samples = product(plan.tasks, range(plan.samples))
            episodes = await gather(*starmap(run_episode, samples))
        finally:
            await abilities.close(environment)
    return [episodes[start : start + plan.samples] for start in range(0, count, plan.samples)]


def _tasks(dataset: DatasetConfig, split: str | None, limit: int | None) -> list[Task]:
    """Return the tasks of the split, by default the first `limit` tasks, on which training evaluates."""
    if split is None and dataset.eval_split is None:
        raise UserError("the config has no dataset.eval_split: give --split")
    tasks = load_tasks(dataset.name, split or dataset.eval_split or "", dataset.type, dataset.on_bad_row)
    if split is None:
        return tasks[:limit]
    return tasks


def _new_folder(path: Path) -> Path:
    path = expand_home(path).absolute()
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"output folder {path} cannot be created ({error.strerror}): give another --output") from None
    if any(path.iterdir()):
        raise UserError(f"output folder {path} is not empty: give another --output")
    return path


def _append(path: Path, model: EvaluatedModel, rows: Iterable[dict[str, Any]]) -> None:
    """Append a line per row, with the label of the model."""
    with path.open("a", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps({"model": model.label, **row}, ensure_ascii=False) + "\n")
