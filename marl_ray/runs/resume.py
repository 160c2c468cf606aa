"""Going on with a run: its config, read once, and what of it must stay."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from marl_ray.config import Config, load
from marl_ray.config.arithmetic import arithmetic
from marl_ray.config.schema import ALGORITHMS
from marl_ray.core.errors import UserError
from marl_ray.runs.folder import RunFolder


@dataclass(frozen=True, slots=True)
class SavedRun:
    """A run that was started before, and the config that its folder has now."""

    folder: RunFolder
    config: Config


def saved_run(path: Path) -> SavedRun:
    """The run in a folder. Raises UserError where there is none."""
    folder = RunFolder(path)
    if not folder.config.exists():
        raise UserError(f"{path} is no run folder: it has no {folder.config.name}")
    text = folder.config.read_text()
    for name in ALGORITHMS:
        if f"\n{name}:" in text:
            return SavedRun(folder, load(folder.config, name))
    raise UserError(f"{folder.config} has no section {' or '.join(ALGORITHMS)}")


def check_resume(config: Config, saved: SavedRun, num_tasks: int) -> None:
    """`config` may go on from the last checkpoint of `saved`. `num_tasks` 0: not known. Raises UserError."""
    _check_same_run(config, saved.config)
    _, state = saved.folder.checkpoints.latest()
    if num_tasks and state.step >= arithmetic(config, num_tasks).total_steps:
        loop = config.loop
        raise UserError(
            f"{saved.folder} has done all of its {state.step} steps: to go on, raise "
            f"{config.algorithm}.num_train_epochs (now {loop.num_train_epochs}) and max_steps "
            f"(now {loop.max_steps or 'null'}) with --override"
        )


def _check_same_run(config: Config, saved: Config) -> None:
    """Folder, checkpoints and place in the data follow from these, so a resumed run keeps them. Raises UserError."""
    for name, now, before in (
        ("seed", config.seed, saved.seed),
        ("dataset", config.dataset, saved.dataset),
        ("rollout_buffer_size", config.rollout.rollout_buffer_size, saved.rollout.rollout_buffer_size),
        ("num_agents", config.num_agents, saved.num_agents),
        ("models", [agent.name for agent in config.agents], [agent.name for agent in saved.agents]),
        ("run_name", config.output.run_name, saved.output.run_name),
    ):
        if now != before:
            raise UserError(f"a resumed run keeps its {name}: start a new run to change it")
