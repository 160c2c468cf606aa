"""A reward model is trained on a few joint preferences, and a team learns from its scores."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from marl_ray.data.loading import load_tasks
from tests.end_to_end.helpers import environment, rows, train
from tests.factories import QUICKSTART, ROOT

pytestmark = pytest.mark.slow


def test_a_team_learns_from_a_model_of_preferences(tmp_path: Path) -> None:
    preferences, model = tmp_path / "pairs.jsonl", tmp_path / "reward"
    chosen, rejected = ["def aux(x):\n    return x", "def f(x):\n    return aux(x)"], ["", "pass"]
    tasks = load_tasks("bundled:toy", "train")[:8]
    pairs = [{"task_id": task.id, "chosen": chosen, "rejected": rejected} for task in tasks]
    preferences.write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    arguments = ["rewardmodel", "--config", str(QUICKSTART), "--preferences", str(preferences), "--to", str(model)]
    trained = subprocess.run(
        [sys.executable, "-m", "marl_ray", *arguments, "--epochs", "8", "--learning-rate", "1e-3"],
        capture_output=True, text=True, timeout=300, env=environment(), cwd=ROOT,
    )  # fmt: skip
    assert trained.returncode == 0, trained.stderr
    result = train(
        *("--config", str(QUICKSTART), "--override", "environment=reward_model", f"reward_model.name={model}"),
        *(
            "magrpo.num_turns=1",
            "magrpo.max_steps=2",
            "magrpo.rollout_buffer_size=4",
            "magrpo.normalize_advantages=true",
        ),
        *("dataset.eval_split=null", f"output.base_dir={tmp_path}", "output.run_name=learned"),
    )
    assert result.returncode == 0, result.stderr
    found = rows(tmp_path / "learned", "step")
    assert [row["agent_0/optimizer_steps"] for row in found] == [1, 1]
    assert all(row["turn_1/reward_mean"] != row["turn_1/task_reward"] for row in found)
