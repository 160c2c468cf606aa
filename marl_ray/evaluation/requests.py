"""Arguments of `marl-ray eval`, `rollout` and `score`. Fields with a docstring are flags. Nothing heavy is imported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationRequest:
    """The arguments of `marl-ray eval`."""

    models: Sequence[str]
    samples: int
    ks: Sequence[int] = (1,)
    folder: Path
    split: str | None = None
    """default: the evaluation tasks of the config"""
    since: Annotated[str | None, "DATE"] = None
    """only tasks from this day on (LiveCodeBench: contest_date)"""
    until: Annotated[str | None, "DATE"] = None
    """only tasks up to this day"""
    protocol: Annotated[str, "NAME"] = "parallel"
    """see below"""
    swap: bool = False
    """evaluate every combination of the models' agents"""
    cooperation: bool = False
    """recombine the answers of turn 1 and measure each contribution; costs executions, no tokens"""
    episodes: bool = False
    """write every episode with all texts"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutRequest:
    """The arguments of `marl-ray rollout`."""

    model: str = "base"
    """base (the config's models), bundled:NAME, or a folder of a model, run or checkpoint"""
    split: str | None = None
    """default: the training split of the config"""
    tasks: int = 4
    """number of tasks from the start of the split"""
    output: Path | None = None
    """write the episodes with all texts, as in episodes.jsonl"""


@dataclass(frozen=True, slots=True)
class ScoreRequest:
    """The arguments of `marl-ray score`. Python programs give the rows of `completions`, commands the file."""

    dataset: Annotated[str, "FILE"]
    """tasks: a data file (.jsonl, .parquet, .json, .csv), or hub id"""
    completions: Path | Sequence[Mapping[str, Any]]
    """a .jsonl file of completions"""
    type: str
    """dataset.type, which determines the rewards"""
    split: str = "test"
    """split of the dataset; a file has the split test"""
    feedback: Annotated[str | None, "MODE"] = None
    """add the next prompts of this external.mode"""
    workers: int | None = None
    """parallel sandboxes; default: one per core"""
    overrides: Mapping[str, Any] = field(default_factory=dict)
