"""Every check of a config that can be made before anything starts.

A run and a dry run both come here; the dry run leaves out what would need a download, and what is true of its own
machine alone.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from marl_ray.actors.sandbox_settings import check_local_machine, check_sandbox
from marl_ray.cluster.placement_plan import describe_demands
from marl_ray.config import Config
from marl_ray.core.episode import Task
from marl_ray.core.errors import UserError
from marl_ray.core.text import pluralize
from marl_ray.credit import BEYOND_SIBLINGS, ESTIMATORS
from marl_ray.data.loading import check_dataset_name, load_tasks, needs_download
from marl_ray.environments import ENVIRONMENTS
from marl_ray.environments.base import Environment
from marl_ray.external.transition import Transition
from marl_ray.learning.arguments import require_optimizer
from marl_ray.models.lora import require_peft
from marl_ray.models.names import check_model, describe_prompts, resolve_model
from marl_ray.models.tokenization import load_tokenizer
from marl_ray.storage.resume import SavedRun, check_resume
from marl_ray.storage.run_folder import RunFolder, new_folder
from marl_ray.telemetry.trackers import require_trackers
from marl_ray.trainer.context import RunInputs

logger = logging.getLogger(__name__)


def check(config: Config, saved: SavedRun | None = None, dry: bool = False) -> RunInputs:
    """Look at everything outside the config that it names; `saved` is the run to go on with. Raises UserError.

    In a dry run, the tasks of a hub's dataset stay empty, a hub's model is checked by its name alone, and this machine
    need not be the one of the run.
    """
    environment = ENVIRONMENTS.get(config.environment).from_config(config)
    transition = Transition(config.external, environment)
    for agent in config.agents:
        if agent.estimator not in ESTIMATORS.entries:  # those of the package are there, and import torch
            ESTIMATORS.get(agent.estimator)
    require_trackers(config)
    require_peft(config.lora)
    require_optimizer(config.optimizer)
    check_sandbox(config)
    describe_demands(config)
    templates = _check_models(config, dry)
    train_tasks, eval_tasks = _load_tasks(config, dry)
    for task in (*train_tasks, *eval_tasks):
        environment.check_task(task)
    _check_order(config, environment, (*train_tasks, *eval_tasks))
    if config.credit.critic == "maac" and not dry:
        _check_central_critic(config, [text for task in train_tasks[:1] for text in environment.first_prompts(task)])
    if transition.note:
        logger.info(transition.note)
    _warn_of_overlap(config, train_tasks, eval_tasks)
    if not dry:
        check_local_machine(config)
    if saved is None:
        check_new_folder(folder_of(config))
    else:
        check_resume(config, saved, len(train_tasks))
    return RunInputs(environment, transition, train_tasks, eval_tasks, tuple(describe_prompts(config, templates)))


def folder_of(config: Config) -> RunFolder:
    """The folder of a new run; without a run_name, another one at every call."""
    output = config.output
    return new_folder(output.base_dir, output.run_name, f"{config.algorithm}-{config.dataset.type}")


def existing_run(config: Config) -> SavedRun | None:
    """The run that is in the config's folder, if there is one. Raises UserError where it cannot be read."""
    folder = folder_of(config)
    return SavedRun.read(folder.path) if folder.config.exists() else None


def _check_order(config: Config, environment: Environment[Any], tasks: Sequence[Task]) -> None:
    """Where roles answer one after another, a node has more joint actions than the config's arithmetic knows of."""
    stages = max((len(environment.order(task)) for task in tasks), default=1)
    if stages == 1:
        return
    if config.rollout.handoff == "all":
        raise UserError(
            f"{config.algorithm}.handoff all is for agents that answer at the same time, and environment "
            f"{config.environment} has them answer one after another: set it to random or best"
        )
    if config.credit.critic == "maac":
        raise UserError(
            f"{config.algorithm}.critic maac values what all agents read before anybody has answered, and in "
            f"environment {config.environment} agents answer one after another: set it to iac"
        )
    for agent in config.agents:
        if BEYOND_SIBLINGS.get(agent.estimator) in ("greedy", "counterfactual"):
            raise UserError(
                f"estimator {agent.estimator} looks at answers in place of those given, and where agents answer one "
                f"after another, as in environment {config.environment}, later ones have read those given: use another"
            )
    logger.info(
        f"agents answer one after another, in {stages} stages: a node has up to {pluralize(stages, 'time')} the joint "
        "actions that the plan counts, since each earlier answer is continued by later ones that have read it"
    )


def _check_models(config: Config, dry: bool) -> dict[str, tuple[bool, str]]:
    """By name: whether prompts go through the chat template, and why; not for what a dry run would have to fetch."""
    places = {agent.name: resolve_model(agent.name, fetch=False) for agent in config.agents}
    known = [name for name, place in places.items() if not dry or Path(place).is_dir()]
    return {name: check_model(name, config.model) for name in known}


def _check_central_critic(config: Config, texts: list[str]) -> None:
    """It reads the ids of all agents' prompts, so they have to mean the same. Raises UserError."""
    first, *others = dict.fromkeys(agent.name for agent in config.agents)
    ids = load_tokenizer(resolve_model(first), config.model)(texts).input_ids
    for name in others:
        if load_tokenizer(resolve_model(name), config.model)(texts).input_ids != ids:
            raise UserError(
                f"{config.algorithm}.critic maac reads the prompts of all agents, and {first} and {name} have "
                "different tokenizers: use iac, or models with one tokenizer"
            )


def _load_tasks(config: Config, dry: bool) -> tuple[list[Task], list[Task]]:
    """Training and evaluation tasks."""
    dataset = config.dataset
    check_dataset_name(dataset.name, [split for split in (dataset.train_split, dataset.eval_split) if split])
    if dry and needs_download(dataset.name):
        return [], []
    train = load_tasks(dataset.name, dataset.train_split, dataset.type)
    return train, load_tasks(dataset.name, dataset.eval_split, dataset.type) if dataset.eval_split else []


def _warn_of_overlap(config: Config, train_tasks: list[Task], eval_tasks: list[Task]) -> None:
    dataset = config.dataset
    both = {_content(task) for task in train_tasks} & {_content(task) for task in eval_tasks}
    if both:
        logger.warning(
            f"{pluralize(len(both), 'task')} of {dataset.eval_split} are in {dataset.train_split} too, so the "
            "evaluation is not on held-out tasks: set dataset.train_split and dataset.eval_split apart"
        )


def _content(task: Task) -> tuple[Any, ...]:
    """All of a task but its id."""
    return (task.prompt, *sorted(task.fields.items()))


def check_new_folder(folder: RunFolder) -> None:
    """The folder can be made. Raises UserError where it holds a run or what cannot hold one; says so where this user
    may not write, which need not be so on the machine of the run."""
    if folder.config.exists():
        raise UserError(
            f"{folder} already holds a run: resume it with --resume {folder}, or set another output.run_name"
        )
    there = next(parent for parent in (folder.path, *folder.path.parents) if parent.exists())
    if not there.is_dir():
        raise UserError(f"output folder {folder} cannot be made ({there} is not a folder): set output.base_dir")
    if not os.access(there, os.W_OK | os.X_OK):
        logger.warning(
            f"output folder {folder} cannot be made here (no right to write to {there}): set output.base_dir"
        )
