"""Checks of a config before anything starts.

Runs and dry runs use the same checks. A dry run skips checks that need a download or depend on the local machine.
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
from marl_ray.credit import ESTIMATORS
from marl_ray.credit.requirements import CRITIC_REQUIREMENTS, estimator_requirements
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
from marl_ray.telemetry.sinks import require_trackers
from marl_ray.trainer.context import RunInputs

logger = logging.getLogger(__name__)


def check(config: Config, saved: SavedRun | None = None, dry: bool = False) -> RunInputs:
    """Check everything outside the config that the config names, and return the inputs of the run.

    `saved` is the run to resume. In a dry run, tasks of a data set on a hub are not loaded, a model on a hub is checked
    by its name only, and this machine is not checked. Raises UserError.
    """
    environment = ENVIRONMENTS.get(config.environment).from_config(config)
    transition = Transition(config.external, environment)
    for agent in config.agents:
        if agent.estimator not in ESTIMATORS.entries:  # bundled estimators exist, and importing them imports torch
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
    """Return the folder of a new run. Without a run_name, every call returns another folder."""
    output = config.output
    return new_folder(output.base_dir, output.run_name, f"{config.algorithm}-{config.dataset.type}")


def existing_run(config: Config) -> SavedRun | None:
    """Return the run in the config's folder, if there is one. Raises UserError if it cannot be read."""
    folder = folder_of(config)
    return SavedRun.read(folder.path) if folder.config.exists() else None


def _check_order(config: Config, environment: Environment[Any], tasks: Sequence[Task]) -> None:
    """Raise UserError for settings that need all agents to answer at the same time, if the environment has an order."""
    rounds = max((len(environment.order(task)) for task in tasks), default=1)
    if rounds == 1:
        return
    if config.rollout.handoff == "all":
        raise UserError(
            f"{config.algorithm}.handoff all needs agents that answer at the same time, but in environment "
            f"{config.environment} agents answer one after another: set it to random or best"
        )
    if CRITIC_REQUIREMENTS[config.credit.critic].parallel_agents:
        raise UserError(
            f"{config.algorithm}.critic {config.credit.critic} reads all agents' prompts before any agent answers, but in "
            f"environment {config.environment} agents answer one after another: set it to iac"
        )
    for agent in config.agents:
        if estimator_requirements(agent.estimator).parallel_agents:
            raise UserError(
                f"estimator {agent.estimator} replaces completions, but in environment {config.environment} agents "
                "answer one after another and have read the original completions: use another estimator"
            )
    logger.info(
        f"agents answer one after another, in {rounds} rounds: a node has up to {pluralize(rounds, 'time')} the joint "
        "actions that the plan counts, because every earlier completion is continued by later agents"
    )


def _check_models(config: Config, dry: bool) -> dict[str, tuple[bool, str]]:
    """Return by model name whether prompts use the chat template, and why. A dry run skips models on a hub."""
    paths = {agent.name: resolve_model(agent.name, fetch=False) for agent in config.agents}
    local = [name for name, path in paths.items() if not dry or Path(path).is_dir()]
    return {name: check_model(name, config.model) for name in local}


def _check_central_critic(config: Config, texts: list[str]) -> None:
    """Raise UserError if models have different tokenizers: a central critic reads the token ids of all agents."""
    first, *others = dict.fromkeys(agent.name for agent in config.agents)
    ids = load_tokenizer(resolve_model(first), config.model)(texts).input_ids
    for name in others:
        if load_tokenizer(resolve_model(name), config.model)(texts).input_ids != ids:
            raise UserError(
                f"{config.algorithm}.critic maac reads the prompts of all agents, and {first} and {name} have "
                "different tokenizers: use iac, or models with one tokenizer"
            )


def _load_tasks(config: Config, dry: bool) -> tuple[list[Task], list[Task]]:
    """Return training and evaluation tasks."""
    dataset = config.dataset
    check_dataset_name(dataset.name, [split for split in (dataset.train_split, dataset.eval_split) if split])
    if dry and needs_download(dataset.name):
        return [], []
    train = load_tasks(dataset.name, dataset.train_split, dataset.type)
    return train, load_tasks(dataset.name, dataset.eval_split, dataset.type) if dataset.eval_split else []


def _warn_of_overlap(config: Config, train_tasks: list[Task], eval_tasks: list[Task]) -> None:
    dataset = config.dataset
    shared = {_content(task) for task in train_tasks} & {_content(task) for task in eval_tasks}
    if shared:
        logger.warning(
            f"{pluralize(len(shared), 'task')} of {dataset.eval_split} are also in {dataset.train_split}, so the "
            "evaluation is not on held-out tasks: set dataset.train_split and dataset.eval_split apart"
        )


def _content(task: Task) -> tuple[Any, ...]:
    """Return all of a task except its id."""
    return (task.prompt, *sorted(task.fields.items()))


def check_new_folder(folder: RunFolder) -> None:
    """Raise UserError if the folder contains a run or cannot be a folder.

    Missing permissions are only a warning, because the run may start on another machine.
    """
    if folder.config.exists():
        raise UserError(
            f"{folder} already contains a run: resume it with --resume {folder}, or set another output.run_name"
        )
    existing = next(parent for parent in (folder.path, *folder.path.parents) if parent.exists())
    if not existing.is_dir():
        raise UserError(f"output folder {folder} cannot be made ({existing} is not a folder): set output.base_dir")
    if not os.access(existing, os.W_OK | os.X_OK):
        logger.warning(
            f"output folder {folder} cannot be made here (no right to write to {existing}): set output.base_dir"
        )
