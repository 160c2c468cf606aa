"""Every check of a config that can be made before anything starts.

A run and a dry run both come here; the dry run leaves out what would need a download. Each problem is one line.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from marl_ray.core.words import counted
from marl_ray.cluster.plan import PlacementError, demands
from marl_ray.actors.sandbox_settings import sandbox_settings
from marl_ray.config.schema import Config
from marl_ray.data import check_dataset, infer_type, load_tasks, needs_download
from marl_ray.environments import make_environment
from marl_ray.external import ExternalTransition
from marl_ray.core.messages import Task
from marl_ray.models.names import check_model, resolve_model
from marl_ray.sandbox import SandboxUnavailable
from marl_ray.telemetry.console import say
from marl_ray.telemetry.record import CONFIG_FILE
from marl_ray.telemetry.wandb import require_wandb

if TYPE_CHECKING:  # what a run needs of these is Ray; a check needs neither
    from marl_ray.rollout.player import Environment, Transition


@dataclass(slots=True)
class Problem:
    """What a run is about: tasks, their environment, and what the agents hear between turns."""

    environment: Environment
    transition: Transition
    train_tasks: list[Task]
    eval_tasks: list[Task]


def check(config: Config, download: bool = True) -> Problem:
    """Look at everything outside the config that it names. Raises ValueError with one line.

    Without `download`, the tasks of a hub's dataset stay empty and a hub's model is checked by its name alone.
    """
    dataset = config.dataset
    environment = make_environment(dataset_type(config), config.num_agents, config.sandbox.count_untrusted)
    transition = ExternalTransition(config.external, environment)
    require_wandb(config)
    try:
        sandbox_settings(config).candidates()
        demands(config)
    except (SandboxUnavailable, PlacementError) as error:
        what = "sandbox: " if isinstance(error, SandboxUnavailable) else ""
        raise ValueError(f"{what}{error}") from None
    models = {name: resolve_model(name, fetch=False) for name in config.model_names}
    check_dataset(dataset.name, [dataset.train_split, *([dataset.eval_split] if dataset.eval_split else [])])
    train_tasks: list[Task] = []
    eval_tasks: list[Task] = []
    if download or not needs_download(dataset.name):
        train_tasks = load_tasks(dataset.name, dataset.train_split, dataset.type)
        eval_tasks = load_tasks(dataset.name, dataset.eval_split, dataset.type) if dataset.eval_split else []
    for name, place in models.items():
        if download or Path(place).is_dir():
            check_model(name, config.model)
    if transition.expert is not None:
        say(f"expert: {transition.expert}, with the key in {transition.expert.key_variable}")
    _warn_of_overlap(config, train_tasks, eval_tasks)
    return Problem(environment, transition, train_tasks, eval_tasks)


def check_run_dir(config: Config) -> None:
    """The folder of a new run can be made. Raises ValueError where it holds a run or what cannot hold one; says so
    where this user may not write, which need not be so on the machine of the run."""
    base = Path(config.output.base_dir).expanduser().absolute()
    path = base / config.output.run_name if config.output.run_name else base
    if config.output.run_name and (path / CONFIG_FILE).exists():
        hint = f"resume it with --resume {path}, or" if any(path.glob("checkpoints/step_*")) else "delete it, or"
        raise ValueError(f"{path} already holds a run: {hint} set another output.run_name")
    there = next(parent for parent in (path, *path.parents) if parent.exists())
    if not there.is_dir():
        raise ValueError(f"output folder {path} cannot be made ({there} is not a folder): set output.base_dir")
    if not os.access(there, os.W_OK | os.X_OK):
        say(f"warning: output folder {path} cannot be made here (no right to write to {there}): set output.base_dir")


def dataset_type(config: Config) -> str:
    """The type of the dataset, given or inferred from its name."""
    return config.dataset.type or infer_type(config.dataset.name)


def _warn_of_overlap(config: Config, train_tasks: list[Task], eval_tasks: list[Task]) -> None:
    dataset = config.dataset
    both = {(task.prompt, task.tests) for task in train_tasks} & {(task.prompt, task.tests) for task in eval_tasks}
    if both:
        say(
            f"warning: {counted(len(both), 'task')} of {dataset.eval_split} are in {dataset.train_split} too, so the "
            "evaluation is not on held-out tasks: set dataset.train_split and dataset.eval_split apart"
        )
