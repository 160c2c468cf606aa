"""A run with counterfactual and greedy baselines and dynamic sampling, and its replay."""

from __future__ import annotations

from pathlib import Path

import pytest

from marl_ray.cli.main import main
from marl_ray.storage.batch_log import BatchLog
from tests.end_to_end.helpers import rows, train
from tests.factories import ROOT

pytestmark = pytest.mark.slow


def test_a_run_with_baselines_and_skipped_prompt_samples(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = train(
        "--config",
        str(ROOT / "configs" / "toy_credit.yaml"),
        "--override",
        "magrpo.rollout_buffer_size=4",
        "magrpo.num_generations=4",
        "magrpo.max_steps=2",
        "magrpo.max_new_tokens=24",
        "dataset.eval_split=null",
        "output.save_final_model=false",
        "output.keep_batches=true",
        f"output.base_dir={tmp_path}",
        "output.run_name=credit",
    )
    assert result.returncode == 0, result.stderr
    log, env_steps, draw = BatchLog(tmp_path / "credit" / "batches"), 0, 0
    for step, row in enumerate(rows(tmp_path / "credit", "step")):
        logged = log.read(step)
        assert row["rollout/episodes"] == logged.prompt_samples == 4 + len(logged.skipped)
        assert set(logged.skipped) < set(range(draw, draw + logged.prompt_samples))
        draw += logged.prompt_samples
        env_steps += row["rollout/joint_samples"]
        assert row["env_steps"] == env_steps
        assert row["rollout/joint_samples"] == logged.prompt_samples * 2 * (4 + 1), "the greedy joint action counts too"
        assert 0 <= row["turn_1/greedy_reward_mean"] <= 4
        assert -4 <= row["agent_0/turn_1/difference_mean"] <= 4
        helpers, mains = (batch.mini_batches[0].groups for batch in logged.batches)
        for group in (*helpers, *mains):
            (baselines,) = group.inputs.values()
            differences = [r - b for r, b in zip(group.returns, baselines, strict=True)]
            assert group.weights == pytest.approx([difference / 4 for difference in differences])
        assert all(len(set(group.inputs["greedy_rewards"])) == 1 for group in mains), "one greedy sample per node"
    assert main(["replay", str(tmp_path / "credit")]) == 0
    assert "metrics are bit-identical" in capsys.readouterr().out
