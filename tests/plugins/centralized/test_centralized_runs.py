"""The config of a team, with one setting more, trains one policy that writes all parts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.end_to_end.helpers import rows, train
from tests.factories import ROOT

pytestmark = pytest.mark.slow


def test_one_policy_writes_all_parts(tmp_path: Path) -> None:
    result = train(
        *("--config", str(ROOT / "configs" / "toy_grid.yaml"), "--override"),
        "environment=centralized",
        "magrpo.num_turns=2",
        "magrpo.num_generations=4",
        "magrpo.rollout_buffer_size=4",
        "magrpo.max_steps=2",
        "dataset.eval_split=null",
        f"output.base_dir={tmp_path}",
        "output.run_name=one",
    )
    assert result.returncode == 0, result.stderr
    assert "starting 1 generator, 1 learner" in result.stderr
    found = rows(tmp_path / "one", "step")
    assert [row["agent_0/optimizer_steps"] for row in found] == [1, 1]
    assert all(0 <= row["turn_1/tagged_parts"] <= 1 for row in found)
    assert "agent_1/loss" not in found[0]
