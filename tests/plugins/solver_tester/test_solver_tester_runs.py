"""Two training steps of a solver and a tester."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.end_to_end.helpers import rows, train
from tests.factories import ROOT

pytestmark = pytest.mark.slow

SMALL = ["magrpo.rollout_buffer_size=2", "magrpo.num_generations=4", "magrpo.max_steps=2", "magrpo.max_new_tokens=32"]


def test_a_solver_and_a_tester_train_for_two_steps(tmp_path: Path) -> None:
    config = ["--config", str(ROOT / "configs" / "toy_solver_tester.yaml"), "--override"]
    output = ["dataset.eval_split=null", "output.save_final_model=false", f"output.base_dir={tmp_path}"]
    result = train(*config, *SMALL, *output, "output.run_name=r")
    assert result.returncode == 0, result.stderr
    assert "agents answer one after another, in 2 rounds" in result.stderr
    first, second = rows(tmp_path / "r", "step")
    assert first["env_steps"] == 2 * 2 * (2 * 3 + 1)
    assert {"turn_1/level/found", "turn_2/tests_valid_rate", "agent_0/turn_1/reward_mean"} <= set(first)
    assert second["agent_1/weight_version"] == 2
    assert first["agent_1/optimizer_steps"] + second["agent_1/optimizer_steps"] > 0
    episodes = [json.loads(line) for line in (tmp_path / "r" / "episodes.jsonl").read_text().splitlines()]
    for node in episodes[0]["nodes"]:
        assert len(node["other_prompts"][0]) == 3
        assert [len(group) for group in node["responses"]] == [7, 4]
        assert node["prompts"][0].startswith("Another agent's solution:\n")
        assert len(node["joint_actions"][0]["rewards"]) == 2
