"""Runs of the real command, each in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.factories import QUICKSTART, ROOT

HUMANEVAL = ROOT.parent / "shared" / "data" / "humaneval.jsonl"
QUICK = ["--config", str(QUICKSTART), "--override"]
ONE_AGENT = ["magrpo.num_agents=1"]
"""For tests that do not depend on the number of agents. A run with half the actors starts almost twice as fast."""


STRAY = {
    **{"RANK": "3", "LOCAL_RANK": "3", "WORLD_SIZE": "8", "MASTER_ADDR": "192.0.2.1", "MASTER_PORT": "29500"},
    **{"SLURM_JOB_ID": "5", "SLURM_PROCID": "3", "SLURM_NTASKS": "8", "SLURM_LOCALID": "3"},
    "VLLM_PORT": "tcp://192.0.2.1:8000",
    "http_proxy": "http://127.0.0.1:1",
    "all_proxy": "socks5://127.0.0.1:1",
}
"""Variables that a local run must ignore: of torchrun, SLURM, proxies, and Kubernetes with a service called vllm."""


def environment() -> dict[str, str]:
    """Return this process' environment with stray variables, and without Ray's, which might name a cluster."""
    return {k: v for k, v in os.environ.items() if not k.startswith("RAY_")} | STRAY


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "marl_ray.train_magrpo", *arguments]


def train(*arguments: str, timeout: float = 300, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Train to the end in `folder`."""
    return subprocess.run(
        command(*arguments), capture_output=True, text=True, timeout=timeout, env=environment(), cwd=folder
    )


def rows(run_dir: Path, kind: str) -> list[dict]:
    """Return the rows of metrics.jsonl of one kind: `step` or `eval`."""
    parsed = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return [r for r in parsed if any(k.startswith("eval/") for k in r) == (kind == "eval")]


TIMED = ("_per_s", "sandbox/pending_max", "/sequences_in_flight_max", "/groups_waiting_max")


def without_times(row: dict) -> dict:
    """Return the row without durations, rates and depths of queues, which depend on the machine."""
    return {key: value for key, value in row.items() if not key.startswith("time/") and not key.endswith(TIMED)}
