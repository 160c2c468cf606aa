"""Settings of where a run's results go; see `marl_ray.config.schema` for all others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from marl_ray.config.values import NotNegativeInt, PositiveInt


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputConfig:
    """Where results go."""

    base_dir: str = "runs"
    """Folder of runs. On a cluster it must be one that every node sees."""
    run_name: str | None = None
    """Folder of this run, always below base_dir; null: made from the algorithm, the dataset and the time."""
    save_final_model: bool = True
    """Write each agent's model to models/agent_<i> at the end, and one that several agents share to
    models/policy_<i>."""
    keep_checkpoints: PositiveInt = 2
    """How many checkpoints to keep; older ones are deleted."""
    keep_batches: bool = False
    """Keep every step's batch in batches/, as `marl-ray replay` reads it; false: only those that the last checkpoint
    does not cover."""
    resume: Literal["never", "auto"] = "never"
    """auto: a run of this run_name goes on if it exists, as after a scheduler's requeue; never: a new run is
    refused."""
    episodes_per_step: NotNegativeInt = 2
    """How many episodes of a step are written, with all texts, to episodes.jsonl."""
    probe_helpers: Literal["off", "eval", "always"] = "off"
    """Measure by execution what helpers are worth: metrics helper_needed and helper_suffices, at evaluations or at
    every step. Costs two more executions a helper for each distinct program that passes a test and calls it."""
    tensorboard: bool = False
    """Write every number to tensorboard/ in the run's folder too; the package tensorboard has to be installed."""
    verbose: bool = False
    """Show the logs of Ray and vLLM."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WandbConfig:
    """Weights & Biases; used when `project` is given and the package is installed."""

    project: str | None = None
    """Project to log to; null: Weights & Biases is not used."""
    entity: str | None = None
    """User or team; null: the account's own."""
    name: str | None = None
    """The run's name there; null: that of the run's folder."""
    dir: str | None = None
    """Folder of its files; null: the run's."""
    tags: tuple[str, ...] = ()
    """Labels of the run."""
