"""An arm and a study, the data of the tables."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

CONFIGS = Path(__file__).resolve().parent.parent.parent / "configs"
FROZEN = "{learning_rate: 0}"
JOINT = "joint"
"""The arm with which all other arms of a study are compared."""


@dataclass(frozen=True, slots=True)
class Arm:
    """A way to train: its title in the table, and its settings that differ from the joint arm."""

    title: str
    overrides: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Study:
    """Ways to train one base policy on one data set. All arms take the same number of steps.

    | field | meaning |
    |---|---|
    | `common` | settings of all arms, added to the config |
    | `groups` | arms by name, per panel of the plot |
    | `files` | files that determine the results besides the settings; the first has the tasks for the expert |
    | `columns` | titles of the table's columns by metric |
    | `compared` | metrics whose differences from the joint arm are shown |
    | `drawn` | the metric of the curves, and its label |
    | `marked` | whether the panels show the rewards on held-out tasks |
    | `extra_metrics` | further metrics of an evaluation, from (run folder, step, last turn) |
    | `learned` | held-out reward above which a seed has learned, or None for a table without that column |
    | `models` | functions that write a base policy to a folder, by `model.name`: a folder below the repository |
    | `in_process` | whether a run is one process without Ray and vLLM (`benchmarks.in_process`) |
    """

    name: str
    config: Path
    common: Mapping[str, Any]
    groups: Mapping[str, Mapping[str, Arm]]
    files: tuple[Path, ...]
    columns: Mapping[str, str]
    compared: tuple[str, ...]
    drawn: tuple[str, str]
    marked: bool = False
    extra_metrics: Callable[[Path, int, int], dict[str, float]] = lambda run, step, last: {}
    learned: float | None = None
    models: Mapping[str, Callable[[Path], None]] = field(default_factory=dict)
    in_process: bool = False

    @property
    def arms(self) -> dict[str, Arm]:
        return {name: arm for group in self.groups.values() for name, arm in group.items()}

    def digest(self, arm: str) -> str:
        """Return a digest of everything that determines an arm's results, except the seed and the code."""
        settings = json.dumps({**self.common, **self.arms[arm].overrides}, sort_keys=True)
        if self.in_process:
            settings += "in process"
        return hashlib.sha256((_shared_digest(self.config, self.files) + settings).encode()).hexdigest()[:8]


@functools.cache
def _shared_digest(config: Path, files: tuple[Path, ...]) -> str:
    """Return a digest of the config and the files that all arms of a study share."""
    digest = hashlib.sha256(json.dumps(yaml.safe_load(config.read_text(encoding="utf-8")), sort_keys=True).encode())
    for file in files:
        digest.update(file.read_bytes())
    return digest.hexdigest()
