"""Learning again from checkpoint and log alone: no Ray, no engine, no sandbox.

It shows what an update did, and that the log is complete: on the machine of the run all numbers agree to the bit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from transformers.utils.logging import disable_progress_bar

from marl_ray.config import Config, from_tree
from marl_ray.config.budget import training_budget
from marl_ray.config.parsing import read_yaml
from marl_ray.core.batch import UpdateStats
from marl_ray.core.errors import UserError
from marl_ray.core.ids import PolicyId
from marl_ray.data.loading import load_tasks
from marl_ray.learning.arguments import local_learner_arguments
from marl_ray.learning.learner import Learner
from marl_ray.storage.checkpoints import Checkpoints, checkpoint_step, read_state
from marl_ray.storage.resume import SavedRun
from marl_ray.storage.run_folder import RunFolder, StoredHistory
from marl_ray.telemetry.sinks import is_evaluation, read_rows

ROUNDING = 1e-5
"""Relative differences up to here are another machine's, or another number of threads."""
COMPARED = {"loss": 0.1, "grad_norm": 0.0, "learning_rate": 0.0, "logprob_gap": 1.0}
"""What is compared, and the size below which a difference is relative to that size instead of to the number itself: a
loss near 0 is a difference of large terms, and the gap between learner and sampler is rounding itself."""


@dataclass(frozen=True, slots=True)
class ReplayRange:
    """Which batches are learned from again: `start` to before `last`, and shown from `first` on."""

    checkpoint: Path | None
    """None: the base models."""
    start: int
    first: int
    last: int

    @classmethod
    def through(cls, folder: RunFolder, first: int | None, last: int | None) -> ReplayRange:
        """From the newest checkpoint at or before `first`, or the base models. None: as many as there can be.

        Raises UserError where the log lacks a batch on the way.
        """
        logged = set(folder.log.steps())
        starts: dict[int, Path | None] = {0: None} | {checkpoint_step(path): path for path in folder.checkpoints.all()}
        hint = "output.keep_batches: true keeps all of a run's batches"
        if last is None:
            if not logged:
                raise UserError(f"{folder} has no batch to learn from again: {hint}")
            last = max(logged) + 1
        if logged and last > max(logged) + 1:
            raise UserError(f"{folder} has batches up to step {max(logged) + 1} only: --steps cannot go on to {last}")
        if first is None:
            before = [start for start in starts if start < last]
            whole = [start for start in before if logged.issuperset(range(start, last))]
            first = min(whole, default=max(before, default=0))
        if first >= last:
            raise UserError(f"--steps {first}:{last} is no step: give FROM:TO with FROM below TO")
        start = max(start for start in starts if start <= first)
        lost = next((step for step in range(start, last) if step not in logged), None)
        if lost is not None:
            raise UserError(
                f"{folder} has no batch {lost}, on the way from step {start} to step {last}: {hint}; there are "
                f"{_ranges(sorted(logged)) or 'none'}"
            )
        return cls(starts[start], start, first, last)


@dataclass(frozen=True, slots=True)
class ReplayedStep:
    """One step, counted from 1 as in metrics.jsonl: each of `COMPARED` as it was found again and as it was recorded.

    None: there is no such number, or none that is finite.
    """

    step: int
    found: Mapping[str, float | None]
    recorded: Mapping[str, float | None] | None
    """None: the run had not learned from it yet."""

    @property
    def difference(self) -> float:
        """The largest, relative; 0: the same bits."""
        if self.recorded is None:
            return 0.0
        return max(_difference(self.found[name], self.recorded[name], size) for name, size in COMPARED.items())


def replay(folder: RunFolder, saved: SavedRun, policy: PolicyId, way: ReplayRange) -> Iterator[ReplayedStep]:
    """One policy's steps, one after another. Raises UserError for what is missing or damaged."""
    disable_progress_bar()  # of transformers, for files that are read at once
    rows = read_rows(folder.metrics) if folder.metrics.exists() else ()
    recorded = {row["step"]: row for row in rows if not is_evaluation(row)}
    learner, history = None, StoredHistory(folder, policy)
    for config, batches in _parts(folder, saved, way):
        learner = _learner(config, policy, way) if learner is None else _again(config, policy, learner)
        for step in batches:
            stats = learner.update(history.batch(step))
            if step >= way.first:
                row = recorded.get(step + 1)
                yield ReplayedStep(step + 1, _numbers(stats), row and _recorded(row, policy))


def _parts(folder: RunFolder, saved: SavedRun, way: ReplayRange) -> Iterator[tuple[Config, range]]:
    """The batches with the config that they were learned from under, which a resumed run may have changed."""
    start = way.start
    for until, path in folder.former_configs().items():
        if start < min(until, way.last):
            yield from_tree(read_yaml(path), saved.algorithm), range(start, min(until, way.last))
            start = until
    if start < way.last:
        yield saved.config(), range(start, way.last)


def _learner(config: Config, policy: PolicyId, way: ReplayRange) -> Learner:
    """As it was when it had seen `way.start` batches."""
    learner = _new(config, policy)
    if way.checkpoint is not None:
        read_state(way.checkpoint)
        learner.load(str(Checkpoints.policy_folder(way.checkpoint, policy)), way.start)
    return learner


def _again(config: Config, policy: PolicyId, before: Learner) -> Learner:
    """The same learner under another config, as after --resume."""
    with TemporaryDirectory() as folder:
        before.save(folder)
        learner = _new(config, policy)
        learner.load(folder, before.step)
    return learner


def _new(config: Config, policy: PolicyId) -> Learner:
    """At the base model. It computes as the run's did where this machine is like the run's."""
    return Learner(*local_learner_arguments(config, policy, _schedule_steps(config)))


def _schedule_steps(config: Config) -> int:
    """The optimizer steps of the run, which depend on the size of the data; a constant schedule does not on them."""
    if config.optimizer.lr_scheduler == "constant":
        return 1
    dataset = config.dataset
    return training_budget(config, len(load_tasks(dataset.name, dataset.train_split, dataset.type))).optimizer_steps


def _numbers(stats: UpdateStats) -> dict[str, float | None]:
    return {name: _finite(getattr(stats, name)) for name in COMPARED}


def _recorded(row: Mapping[str, Any], policy: PolicyId) -> dict[str, float | None]:
    return {name: row.get(f"{policy.key}/{name}") for name in COMPARED}


def _finite(number: float | None) -> float | None:
    return number if number is not None and math.isfinite(number) else None


def _difference(found: float | None, recorded: float | None, size: float) -> float:
    if found == recorded:
        return 0.0
    if found is None or recorded is None:
        return math.inf
    return abs(found - recorded) / max(abs(found), abs(recorded), size)


def _ranges(steps: list[int]) -> str:
    """`0 to 3, 7`."""
    ranges: list[list[int]] = []
    for step in steps:
        if ranges and step == ranges[-1][-1] + 1:
            ranges[-1][1:] = [step]
        else:
            ranges.append([step])
    return ", ".join(" to ".join(map(str, ends)) for ends in ranges)
