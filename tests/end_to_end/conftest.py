"""Runs of the real program, each in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
HUMANEVAL = ROOT.parent / "shared" / "data" / "humaneval.jsonl"
QUICK = ["--config", str(ROOT / "configs" / "quickstart.yaml"), "--override"]
ALONE = ["magrpo.num_agents=1"]
"""For what does not depend on the number of agents: a run with half the actors starts in little more than half the
time."""


def environment() -> dict[str, str]:
    """This process' variables, but for what would name a cluster."""
    return {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "marl_ray.train_magrpo", *arguments]


def train(*arguments: str, timeout: float = 300) -> subprocess.CompletedProcess[str]:
    """Run to the end."""
    return subprocess.run(
        command(*arguments), capture_output=True, text=True, timeout=timeout, env=environment(), cwd=ROOT
    )


def rows(run_dir: Path, kind: str) -> list[dict]:
    """The rows of metrics.jsonl: kind is `step` or `eval`."""
    parsed = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return [r for r in parsed if any(k.startswith("eval/") for k in r) == (kind == "eval")]


def timeless(row: dict) -> dict:
    """The row without what a clock says."""
    return {key: value for key, value in row.items() if not key.startswith("time/") and not key.endswith("_per_s")}


@pytest.fixture
def children() -> Iterator[list[subprocess.Popen]]:
    """Processes a test starts; what is left of them is killed."""
    started: list[subprocess.Popen] = []
    yield started
    for process in started:
        if process.poll() is None:
            process.kill()
            process.wait(timeout=30)
