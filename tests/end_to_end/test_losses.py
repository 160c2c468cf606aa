"""A run with several clipped optimizer steps per batch, a reference policy and masked completions."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from tests.end_to_end.helpers import rows, train
from tests.factories import ROOT

pytestmark = pytest.mark.slow


def test_a_run_with_clipped_steps_and_a_reference_policy(tmp_path: Path) -> None:
    result = train(
        "--config",
        str(ROOT / "configs" / "toy_clip.yaml"),
        "--override",
        "magrpo.rollout_buffer_size=4",
        "magrpo.train_batch_size=2",
        "magrpo.max_steps=2",
        "magrpo.max_new_tokens=24",
        "magrpo.max_logprob_gap=1e-3",
        "dataset.eval_split=null",
        "output.save_final_model=false",
        f"output.base_dir={tmp_path}",
        "output.run_name=clipped",
    )
    assert result.returncode == 0, result.stderr
    first, second = rows(tmp_path / "clipped", "step")
    for agent in ("agent_0", "agent_1"):
        assert 2 <= first[f"{agent}/optimizer_steps"] <= 4
        assert first[f"{agent}/reference_kl"] == 0.0, "policy and reference are equal until the first update"
        assert second[f"{agent}/reference_kl"] > 0
        assert 0 <= first[f"{agent}/clip_fraction"] < 1
        assert first[f"{agent}/policy_ratio_max"] > 1
        assert first[f"{agent}/policy_kl"] > 0
        assert 0 < first[f"{agent}/entropy"] < math.log(10_000)
