"""Replaying updates from a checkpoint and the batch log, without Ray, engine or sandbox.

A replay reproduces the recorded metrics, bit for bit on the machine of the run if its learner had one rank, otherwise
up to rounding. It verifies the log.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from marl_ray.config import Config, from_tree
from marl_ray.config.budget import training_budget
from marl_ray.config.values import read_yaml
from marl_ray.core.errors import UserError
from marl_ray.core.ids import PolicyId
from marl_ray.data.loading import load_tasks
from marl_ray.learning.arguments import learner_arguments
from marl_ray.learning.learner import Learner
from marl_ray.storage.checkpoints import checkpoint_step, read_state
from marl_ray.storage.resume import SavedRun
from marl_ray.storage.run_folder import RunFolder, StoredHistory
from marl_ray.telemetry.sinks import is_evaluation, read_rows

ROUNDING = 1e-5
"""Maximum relative difference from another machine or another number of threads."""
COMPARED = {"loss": 0.1, "grad_norm": 0.0, "learning_rate": 0.0, "logprob_gap": 1.0}
"""Compared metrics and their scale: differences of smaller numbers are relative to the scale. A loss near 0 is a
difference of large terms, and the gap between learner and engine is itself rounding."""


@dataclass(frozen=True, slots=True)
class ReplayRange:
    """The batches of a replay: `start` to `last` - 1, reported from `first` on. Checkpoint None: the base models."""

    checkpoint: Path | None
    start: int
    first: int
    last: int

    @classmethod
    def find(cls, folder: RunFolder, first: int | None, last: int | None) -> ReplayRange:
        """Return the range from the newest checkpoint at or before `first`, or from the base models.

        None: the longest possible range. Raises UserError if the log lacks a batch of the range.
        """
        logged = set(folder.log.steps())
        checkpoints: dict[int, Path | None] = {0: None}
        """Checkpoints by step; the base models at step 0."""
        for path in folder.checkpoints.all():
            checkpoints[checkpoint_step(path)] = path
        hint = "output.keep_batches: true keeps all of a run's batches"
        end = max(logged, default=-1) + 1
        if last is None:
            if not logged:
                raise UserError(f"{folder} has no logged batch: {hint}")
            last = end
        if logged and last > end:
            raise UserError(f"{folder} has batches up to step {end} only: --steps cannot end at {last}")
        if first is None:
            starts = [step for step in checkpoints if step < last]
            complete = [start for start in starts if logged.issuperset(range(start, last))]
            # Without a complete range, the missing batch behind the newest checkpoint is named below.
            first = min(complete, default=max(starts, default=0))
        if first >= last:
            raise UserError(f"--steps {first}:{last} is no step: give FROM:TO with FROM below TO")
        start = max(step for step in checkpoints if step <= first)
        for step in range(start, last):
            if step not in logged:
                raise UserError(
                    f"{folder} has no batch {step} between step {start} and step {last}: {hint}; the log has "
                    f"{_ranges(sorted(logged)) or 'none'}"
                )
        return cls(checkpoints[start], start, first, last)


@dataclass(frozen=True, slots=True)
class ReplayedStep:
    """The replayed and the recorded `COMPARED` metrics of one step, counted from 1 as in metrics.jsonl.

    None: the metric is absent or not finite, or the run has not recorded the step.
    """

    step: int
    replayed: Mapping[str, float | None]
    recorded: Mapping[str, float | None] | None

    @property
    def difference(self) -> float:
        """The largest relative difference; 0 if all metrics are identical."""
        if self.recorded is None:
            return 0.0
        largest = 0.0
        for name, scale in COMPARED.items():
            largest = max(largest, _difference(self.replayed[name], self.recorded[name], scale))
        return largest


def replay(folder: RunFolder, saved: SavedRun, policy: PolicyId, span: ReplayRange) -> Iterator[ReplayedStep]:
    """Yield the replayed steps of one policy. Raises UserError for missing or damaged files."""
    rows = read_rows(folder.metrics) if folder.metrics.exists() else ()
    recorded_rows = {row["step"]: row for row in rows if not is_evaluation(row)}
    history = StoredHistory(folder, policy)
    learner = None
    for config, batches in _ranges_by_config(folder, saved, span):
        learner = _make_learner(config, policy, span, learner)
        for step in batches:
            stats = learner.update(history.batch(step))
            if step < span.first:
                continue  # on the way from the checkpoint
            replayed = {name: _finite(getattr(stats, name)) for name in COMPARED}
            recorded = None
            row = recorded_rows.get(step + 1)
            if row is not None:
                recorded = {name: row.get(f"{policy.key}/{name}") for name in COMPARED}
            yield ReplayedStep(step + 1, replayed, recorded)


def _ranges_by_config(folder: RunFolder, saved: SavedRun, span: ReplayRange) -> Iterator[tuple[Config, range]]:
    """Yield the ranges of batches, each with its config, which a resumed run may have changed."""
    start = span.start
    for until, path in folder.former_configs().items():
        end = min(until, span.last)
        if start < end:
            yield from_tree(read_yaml(path), saved.algorithm), range(start, end)
            start = until
    if start < span.last:
        yield saved.config(), range(start, span.last)


def _make_learner(config: Config, policy: PolicyId, span: ReplayRange, previous: Learner | None) -> Learner:
    """Return the learner at `span.start`, or with the state of `previous` and another config, as after --resume."""
    learner = Learner(*learner_arguments(config, policy, _schedule_steps(config)))
    if previous is not None:
        with TemporaryDirectory() as folder:
            previous.save(folder)
            learner.load(folder, previous.step)
    elif span.checkpoint is not None:
        read_state(span.checkpoint)
        learner.load(str(span.checkpoint / policy.key), span.start)
    return learner


def _schedule_steps(config: Config) -> int:
    """Return the optimizer steps for the learning rate schedule; 1 for a constant schedule, which ignores them."""
    if config.training.lr_scheduler == "constant":
        return 1
    dataset = config.dataset
    tasks = load_tasks(dataset.name, dataset.train_split, dataset.type, dataset.on_bad_row)
    return training_budget(config, len(tasks)).optimizer_steps


def _finite(number: float | None) -> float | None:
    """Return a number as metrics.jsonl has it, whose JSON cannot express others."""
    if number is None or not math.isfinite(number):
        return None
    return number


def _difference(replayed: float | None, recorded: float | None, scale: float) -> float:
    if replayed == recorded:
        return 0.0
    if replayed is None or recorded is None:
        return math.inf
    return abs(replayed - recorded) / max(abs(replayed), abs(recorded), scale)


def _ranges(steps: list[int]) -> str:
    """Return steps as text: `0 to 3, 7`."""
    ranges: list[list[int]] = []
    for step in steps:
        if ranges and step == ranges[-1][-1] + 1:
            ranges[-1][1:] = [step]
        else:
            ranges.append([step])
    return ", ".join(" to ".join(map(str, ends)) for ends in ranges)
