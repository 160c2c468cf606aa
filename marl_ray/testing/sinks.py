"""The check of a sink of metrics."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from marl_ray.config import Config, from_tree
from marl_ray.telemetry.sinks import Sink
from marl_ray.testing.values import require


def check_sink(sink: Callable[[Config, Path], Sink]) -> None:
    """Check a sink with rows and episode records of two processes of a run, in a folder that is deleted afterwards."""
    config = from_tree({"model": {"name": "m"}, "dataset": {"name": "bundled:toy"}, "magrpo": {}}, "magrpo")
    record = {"task": "t", "stops": [], "nodes": []}
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "runs" / "one"
        run_dir.mkdir(parents=True)
        # The second process resumes the run of the first.
        for step in (0, 2):
            opened = sink(config, run_dir)
            require(isinstance(opened, Sink), f"a sink must be a marl_ray.telemetry.sinks.Sink, not {opened!r}")
            sent = opened.sent_step
            require(sent is None or type(sent) is int, f"sent_step must be None or a whole number, not {sent!r}")
            opened.row({"step": step, "env_steps": 4, "eval/turn_1/reward_mean": 0.5, "eval/episodes": 1}, "eval")
            opened.episodes(step, "eval", [record])
            row: dict[str, Any] = {"step": step + 1, "env_steps": 8, "agent_0/loss": 0.5, "note": "text"}
            opened.row(row, "")
            # A number that is not finite is null in metrics.jsonl.
            opened.row({**row, "agent_0/loss": None}, "")  # type: ignore[dict-item]
            opened.episodes(step + 1, "train", [record, record])
            opened.close()
