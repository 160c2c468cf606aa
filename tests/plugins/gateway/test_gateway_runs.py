"""Training of a program over the gateway, from the command line: exact ids, learning, and resuming bit for bit."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from marl_ray.storage.batch_log import BatchLog
from tests.factories import ROOT

pytestmark = pytest.mark.slow

PROGRAM = f"{sys.executable} docs/examples/two_writers.py --task {{task_file}} --turns 2"
"""Two turns in one conversation."""
SIBLINGS = 4


def command(folder: Path, name: str, steps: int, *overrides: str) -> None:
    """Train `steps` steps of the example config in the run `name`, with short rollouts."""
    settings = [f"output.base_dir={folder}", f"output.run_name={name}", f"magrpo.max_steps={steps}", *overrides]
    settings += ["dataset.eval_split=null", f"gateway.command={PROGRAM}", "magrpo.rollout_buffer_size=2"]
    settings.append(f"magrpo.num_generations={SIBLINGS}")
    arguments = [
        "--config",
        str(ROOT / "configs" / "toy_gateway.yaml"),
        *(p for s in settings for p in ("--override", s)),
    ]
    subprocess.run([sys.executable, "-m", "marl_ray.train_magrpo", *arguments], check=True, cwd=ROOT)


def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.nightly
def test_a_resumed_run_of_a_program_equals_an_undisturbed_run(tmp_path: Path) -> None:
    common = ("magrpo.save_steps=1", "magrpo.lr_scheduler=constant", "output.keep_batches=true")
    command(tmp_path, "whole", 3, *common)
    command(tmp_path, "parts", 2, *common)
    command(tmp_path, "parts", 3, *common, "output.resume=auto")
    files = [
        [(tmp_path / name / "models" / f"agent_{agent}" / "model.safetensors").read_bytes() for agent in (0, 1)]
        for name in ("whole", "parts")
    ]
    assert files[0] == files[1]
    log = BatchLog(tmp_path / "whole" / "batches")
    for step, row in enumerate(rows(tmp_path / "whole")):
        assert (row["gateway/failed"], row["gateway/rewritten"], row["gateway/calls"]) == (0, 0, 2 * SIBLINGS * 2 * 2)
        for agent in (0, 1):  # of the same tokens, the engine and the learner have the same log-probabilities
            assert row.get(f"agent_{agent}/logprob_gap", 0.0) < 1e-3
            for group in log.batch(step, agent).mini_batches[0].groups:
                check_conversations(group)


def check_conversations(group: Any) -> None:
    """Check that each sibling's second call continues its first call with exactly the sampled tokens."""
    assert group.siblings == tuple(sibling for sibling in range(SIBLINGS) for _ in range(2))
    for place in range(0, 2 * SIBLINGS, 2):
        history = group.prompts[place] + group.completions[place].token_ids
        assert group.prompts[place + 1][: len(history)] == history


@pytest.mark.nightly
def test_a_resumed_run_with_branch_replays_equals_an_undisturbed_run(tmp_path: Path) -> None:
    def train(name: str, steps: int) -> None:
        settings = [f"output.base_dir={tmp_path}", f"output.run_name={name}", f"magrpo.max_steps={steps}"]
        settings += ["output.resume=auto", "dataset.eval_split=null", "magrpo.save_steps=1", "magrpo.num_generations=4"]
        run = [sys.executable, "-m", "marl_ray.train_magrpo", "--config", str(ROOT / "configs" / "toy_relay.yaml")]
        subprocess.run([*run, "--override", *settings], check=True, cwd=ROOT)

    train("whole", 2)
    train("parts", 1)
    train("parts", 2)
    files = []
    for name in ("whole", "parts"):
        models = tmp_path / name / "models"
        files.append([(models / f"agent_{agent}" / "model.safetensors").read_bytes() for agent in (0, 1)])
    assert files[0] == files[1]
    for row in rows(tmp_path / "whole"):
        # Four deals, each with a run of four calls and two calls that are sampled anew in three runs.
        assert (row["gateway/replays"], row["gateway/diverged"], row["gateway/failed"]) == (4 * 2 * 3, 0, 0)
        assert row["rollout/joint_samples"] == 4 * 7
        assert row["rollout/tokens"] < 4 * 7 * 4  # repeated answers are not sampled
        assert max(row.get(f"agent_{agent}/logprob_gap", 0.0) for agent in (0, 1)) < 1e-3
