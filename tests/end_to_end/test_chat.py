"""Training with composition chat, from the command line: it learns, resumes bit for bit, and can be replayed."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.factories import ROOT

pytestmark = pytest.mark.slow


def command(folder: Path, name: str, steps: int, *overrides: str) -> None:
    """Train `steps` steps of the example config in the run `name`."""
    settings = [f"output.base_dir={folder}", f"output.run_name={name}", f"magrpo.max_steps={steps}", *overrides]
    arguments = ["--config", str(ROOT / "configs" / "toy_chat.yaml"), *(p for s in settings for p in ("--override", s))]
    subprocess.run([sys.executable, "-m", "marl_ray.train_magrpo", *arguments], check=True, cwd=ROOT)


def rows(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [row for row in map(json.loads, lines) if "rollout/episodes" in row]


def test_rewards_rise_and_engine_and_learner_agree_on_whole_conversations(tmp_path: Path) -> None:
    command(tmp_path, "run", 18, "dataset.eval_split=null")
    steps = rows(tmp_path / "run")
    rewards = [row["turn_1/reward_mean"] for row in steps]
    assert statistics.fmean(rewards[-4:]) > statistics.fmean(rewards[:4]) + 0.2
    for row in steps:
        assert all(value < 1e-3 for key, value in row.items() if key.endswith("/logprob_gap") and value is not None)
    nodes = json.loads((tmp_path / "run" / "episodes.jsonl").read_text().splitlines()[0])["nodes"]
    assert nodes[1]["prompts"][0].startswith("Feedback:\n")


@pytest.mark.nightly
def test_a_resumed_run_equals_an_undisturbed_run(tmp_path: Path) -> None:
    common = ("dataset.eval_split=null", "magrpo.save_steps=2", "magrpo.lr_scheduler=constant")
    command(tmp_path, "whole", 4, *common)
    command(tmp_path, "parts", 3, *common)
    command(tmp_path, "parts", 4, *common, "output.resume=auto")
    weights = [
        (tmp_path / name / "models" / f"agent_{agent}" / "model.safetensors").read_bytes()
        for name in ("whole", "parts")
        for agent in (0, 1)
    ]
    assert weights[:2] == weights[2:]
