"""Going on with a run: its config, read once, what of it must stay, and where it stands."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from marl_ray.config import ALGORITHMS, Config, GeneratorResources, LearnerResources, LoraConfig, from_tree
from marl_ray.config.budget import training_budget
from marl_ray.config.parsing import read_yaml
from marl_ray.core.errors import UserError
from marl_ray.core.state import TrainerState
from marl_ray.storage.run_folder import RunFolder
from marl_ray.telemetry.sinks import is_evaluation, read_rows


class RunIsDone(UserError):
    """There is nothing to go on with."""


@dataclass(frozen=True, slots=True)
class SavedRun:
    """A run that was started before, and what its config.yaml says now."""

    folder: RunFolder
    algorithm: str
    tree: Mapping[str, Any]

    @classmethod
    def read(cls, path: Path) -> SavedRun:
        """The run in a folder. Raises UserError where there is none."""
        folder = RunFolder(path)
        if not folder.config.exists():
            raise UserError(f"{path} is no run folder: it has no {folder.config.name}")
        tree = read_yaml(folder.config)
        for name in ALGORITHMS:
            if name in tree:
                return cls(folder, name, tree)
        raise UserError(f"{folder.config} has no section {' or '.join(ALGORITHMS)}")

    def config(
        self, overrides: Mapping[str, Any] | None = None, note: Callable[[str], None] = lambda line: None
    ) -> Config:
        """Its config, with overrides; `note` hears what was made to fit. Raises UserError."""
        try:
            return from_tree(self.tree, self.algorithm, overrides, note)
        except UserError as error:
            if overrides:
                raise
            raise UserError(f"{self.folder.config}: {error}") from None


@dataclass(frozen=True, slots=True)
class ResumeState:
    """Where a run goes on. Agents begin at `state`, learn from what is in the log again, and play on from there."""

    checkpoint: Path | None
    """The newest complete one; None: the base models."""
    state: TrainerState
    """At the checkpoint."""
    logged: int
    """The batches from `state.step` to before this one are in the log, without a gap."""
    evaluated: frozenset[int]
    """Steps up to there whose evaluation was taken and is told of in metrics.jsonl."""

    @classmethod
    def of(cls, folder: RunFolder, total: float = math.inf) -> ResumeState:
        """As the folder says, and no further than a run of `total` steps goes. Raises UserError for what is damaged."""
        found = folder.checkpoints.latest()
        checkpoint, state = found if found else (None, TrainerState(0, 0, 0))
        there = set(folder.log.steps())
        logged = state.step
        while logged in there and logged < total:
            logged += 1
        rows = read_rows(folder.metrics) if logged and folder.metrics.exists() else ()
        return cls(
            checkpoint, state, logged, frozenset(r["step"] for r in rows if is_evaluation(r) and r["step"] <= logged)
        )

    @property
    def has_batches(self) -> bool:
        """Whether any batch was learned from or is in the log."""
        return self.logged > 0

    def without_log(self) -> ResumeState:
        """The same, at its checkpoint."""
        step = self.state.step
        return replace(self, logged=step, evaluated=frozenset(s for s in self.evaluated if s <= step))

    def evaluations(self, config: Config, total: int) -> list[int]:
        """The steps whose evaluation a run of `total` steps has still to take: before it, on the way, and after it."""
        every = config.evaluation.eval_interval
        due = {0, *(range(every, total, every) if every else ()), total}
        return sorted(step for step in due - self.evaluated if step >= self.state.step)

    @classmethod
    def at_start(cls) -> ResumeState:
        """Of a new run."""
        return cls(None, TrainerState(0, 0, 0), 0, frozenset())


def check_resume(config: Config, saved: SavedRun, num_tasks: int) -> None:
    """`config` may go on where `saved` stands. `num_tasks` 0: not known. Raises UserError; RunIsDone at its end."""
    _check_same_run(config, saved.config())
    standing = ResumeState.of(saved.folder)
    state = standing.state
    total = training_budget(config, num_tasks).total_steps if num_tasks else math.inf
    if state.step > total or (state.step == total and _concluded(config, saved.folder, standing)):
        loop = config.loop
        raise RunIsDone(
            f"{saved.folder} has done all of its {state.step} steps: to go on, raise "
            f"{config.algorithm}.num_train_epochs (now {loop.num_train_epochs}) and {config.algorithm}.max_steps "
            f"(now {loop.max_steps or 'null'}) with --override"
        )


def _adapters(config: Config) -> LoraConfig:
    """What adapters are, wherever they learn and whatever is written of them at the end."""
    return replace(config.lora, export="merged", share_base=False)


def same_learning_settings(config: Config, saved: SavedRun, num_tasks: int) -> bool:
    """Whether batches in the log can be learned from again as they were then.

    Under other settings they would be tokens of weights that never were; then they are played again.
    """
    return _learning(config, num_tasks) == _learning(saved.config(), num_tasks)


def _learning(config: Config, num_tasks: int) -> tuple[Any, ...]:
    """What updates depend on, besides the batches, and what batches depend on."""
    agents = [replace(a, generator=GeneratorResources(), learner=LearnerResources(), given=()) for a in config.agents]
    rollout = replace(config.rollout, max_staleness=0, inflight="continue")  # old batches are within any bound they had
    schedule = training_budget(config, num_tasks).optimizer_steps if config.optimizer.lr_scheduler != "constant" else 0
    optimizer = replace(config.optimizer, importance=config.importance)
    return (agents, config.model, rollout, config.credit, optimizer, schedule, config.reward_processor)


def _concluded(config: Config, folder: RunFolder, standing: ResumeState) -> bool:
    """Whether the run has left all that it leaves at its end, trained models and the last evaluation."""
    exported = folder.trained_steps(config.policies) == standing.state.step
    evaluated = standing.state.step in standing.evaluated
    return (exported or not config.output.save_final_model) and (evaluated or not config.dataset.eval_split)


def _check_same_run(config: Config, saved: Config) -> None:
    """Folder, checkpoints and place in the data follow from these, so a resumed run keeps them. Raises UserError."""
    for name, now, before in (
        ("algorithm", config.algorithm, saved.algorithm),
        ("seed", config.seed, saved.seed),
        ("dataset", config.dataset, saved.dataset),
        ("rollout_buffer_size", config.rollout.rollout_buffer_size, saved.rollout.rollout_buffer_size),
        ("dynamic_sampling", config.rollout.dynamic_sampling, saved.rollout.dynamic_sampling),
        ("num_agents", config.num_agents, saved.num_agents),
        ("policies", config.policies, saved.policies),
        ("models", [agent.name for agent in config.agents], [agent.name for agent in saved.agents]),
        ("critic", config.credit.critic, saved.credit.critic),
        ("lora", _adapters(config), _adapters(saved)),
        ("optimizer", config.optimizer.optimizer, saved.optimizer.optimizer),
        ("run_name", config.output.run_name, saved.output.run_name),
    ):
        if now != before:
            raise UserError(f"a resumed run keeps its {name}: start a new run to change it")
