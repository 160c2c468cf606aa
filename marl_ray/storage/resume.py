"""Resuming a run: its saved config, its resume state, and checks of the new config."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from marl_ray.config import ALGORITHMS, Config, from_tree
from marl_ray.config.agent_section import AgentResources
from marl_ray.config.algorithm_section import CreditConfig, OptimizerConfig, RolloutConfig
from marl_ray.config.budget import training_budget
from marl_ray.config.values import read_yaml
from marl_ray.core.errors import UserError
from marl_ray.core.state import TrainerState
from marl_ray.storage.run_folder import RunFolder
from marl_ray.telemetry.sinks import is_evaluation, read_rows


class RunIsDone(UserError):
    """The run to resume has no steps left."""


@dataclass(frozen=True, slots=True)
class SavedRun:
    """A run that was started earlier, with the content of its config.yaml."""

    folder: RunFolder
    algorithm: str
    tree: Mapping[str, Any]

    @classmethod
    def read(cls, path: Path) -> SavedRun:
        """Read the run in a folder. Raises UserError if there is none."""
        folder = RunFolder(path)
        folder.require(folder.config)
        tree = read_yaml(folder.config)
        for name in ALGORITHMS:
            if name in tree:
                return cls(folder, name, tree)
        raise UserError(f"{folder.config} has no section {' or '.join(ALGORITHMS)}")

    def config(
        self, overrides: Mapping[str, Any] | None = None, note: Callable[[str], None] = lambda line: None
    ) -> Config:
        """Return the run's config with overrides. `note` receives a line per adapted setting. Raises UserError."""
        try:
            return from_tree(self.tree, self.algorithm, overrides, note)
        except UserError as error:
            if overrides:
                raise
            raise UserError(f"{self.folder.config}: {error}") from None


@dataclass(frozen=True, slots=True)
class ResumeState:
    """The point from which a run resumes: learners load the checkpoint and repeat the updates of the logged batches."""

    checkpoint: Path | None
    """The newest complete checkpoint. None: the base models."""
    state: TrainerState
    """The progress at the checkpoint."""
    logged: int
    """End of the logged batches: `state.step` to `logged` - 1 are in the log without a gap."""
    evaluated: frozenset[int]
    """Steps up to `logged` whose evaluation is in metrics.jsonl."""

    @classmethod
    def of(cls, folder: RunFolder, total: float = math.inf) -> ResumeState:
        """Read the resume state of a run of at most `total` steps. Raises UserError for a damaged checkpoint."""
        checkpoint, state = folder.checkpoints.latest() or (None, TrainerState(0, 0, 0))
        steps = set(folder.log.steps())
        logged = state.step
        while logged in steps and logged < total:
            logged += 1
        evaluated = set()
        if logged and folder.metrics.exists():
            for row in read_rows(folder.metrics):
                # An evaluation after a gap in the log is repeated with its step.
                if is_evaluation(row) and row["step"] <= logged:
                    evaluated.add(row["step"])
        return cls(checkpoint, state, logged, frozenset(evaluated))

    def without_log(self) -> ResumeState:
        """Return the state at the checkpoint, without the logged batches."""
        step = self.state.step
        evaluated = frozenset(evaluation for evaluation in self.evaluated if evaluation <= step)
        return replace(self, logged=step, evaluated=evaluated)

    def evaluations(self, interval: int, total: int) -> list[int]:
        """Return the steps of the evaluations that are still due in a run of `total` steps: before the first step,
        after each `interval` steps (0: none) and at the end."""
        due = {0, total}
        if interval:
            due.update(range(interval, total, interval))
        return sorted(step for step in due - self.evaluated if step >= self.state.step)

    @classmethod
    def at_start(cls) -> ResumeState:
        """Return the state of a new run."""
        return cls(None, TrainerState(0, 0, 0), 0, frozenset())


def check_resume(config: Config, saved: SavedRun, num_tasks: int) -> None:
    """Check that `config` may continue the run `saved`; its data set has `num_tasks` tasks (0: unknown).

    Raises UserError, and RunIsDone if no steps are left.
    """
    # Settings that determine the folder, the checkpoints or the position in the data.
    before = _identity(saved.config())
    for name, now in _identity(config).items():
        if now != before[name]:
            raise UserError(f"a resumed run keeps its {name}: start a new run to change it")
    resume_state = ResumeState.of(saved.folder)
    step = resume_state.state.step
    total = training_budget(config, num_tasks).total_steps if num_tasks else math.inf
    if step < total:
        return
    if step == total:
        # The last checkpoint precedes the export and the last evaluation.
        is_exported = not config.output.save_final_model or saved.folder.trained_steps(config.policies) == step
        is_evaluated = not config.dataset.eval_split or step in resume_state.evaluated
        if not is_exported or not is_evaluated:
            return
    section = config.algorithm
    epochs = config.training.num_train_epochs or "null"
    max_steps = config.training.max_steps or "null"
    raise RunIsDone(
        f"{saved.folder} has done all of its {step} steps: to go on, raise {section}.num_train_epochs (now {epochs}) "
        f"and {section}.max_steps (now {max_steps}) with --override"
    )


def learning_settings(config: Config, num_tasks: int) -> tuple[Any, ...]:
    """Return the settings on which updates and batches depend. With equal settings, repeating the logged updates gives
    the same weights."""
    agents = []
    for agent in config.agents:
        agents.append(replace(agent, resources=AgentResources(), given=()))
    # Logged batches respect their own bound of staleness.
    settings = replace(config.training, max_staleness=0, inflight="continue", importance=config.importance)
    training: dict[str, Any] = {}
    for part in (RolloutConfig, CreditConfig, OptimizerConfig):
        training |= {name: getattr(settings, name) for name in vars(part())}
    schedule = 0
    if config.training.lr_scheduler != "constant":
        schedule = training_budget(config, num_tasks).optimizer_steps
    return (agents, config.model, training, schedule, config.reward_processor)


def _identity(config: Config) -> dict[str, Any]:
    """Return the settings that a resumed run keeps, by name."""
    training = config.training
    return {
        "algorithm": config.algorithm,
        "seed": config.seed,
        "dataset": config.dataset,
        "rollout_buffer_size": training.rollout_buffer_size,
        "dynamic_sampling": training.dynamic_sampling,
        "num_agents": config.num_agents,
        "policies": config.policies,
        "models": [agent.name for agent in config.agents],
        "critic": training.critic,
        # Its other settings do not affect training.
        "lora": replace(config.lora, export="merged", share_base=False, in_engine=None, share_engine=False),
        "optimizer": training.optimizer,
        "run_name": config.output.run_name,
    }
