"""8-bit AdamW: size of its state, training and resume."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from marl_ray.config import OptimizerConfig
from marl_ray.core.errors import UserError
from marl_ray.learning.arguments import require_optimizer
from marl_ray.learning.learner import STATE_FILE
from tests.learning.toy_learners import group, learner, same, state, update

STEPS = 4


def test_8_bit_adamw_has_a_small_state_trains_alike_and_resumes_bit_identically(tmp_path: Path) -> None:
    pytest.importorskip("bitsandbytes")
    agents = {name: learner(optimizer=name) for name in ("adamw", "adamw_8bit")}
    before = state(agents["adamw"])
    for of in agents.values():
        for _ in range(STEPS):
            assert update(of, group(1.0, 0.0, 0.5)).optimizer_steps == 1
        of.save(str(tmp_path / of.settings.optimizer))
    whole, small = ((tmp_path / name / STATE_FILE).stat().st_size for name in agents)
    weights = sum(weight.numel() for weight in before)
    assert whole > 8 * weights
    assert small < 0.3 * whole, "one byte and a scale per 256 numbers; small tensors in 4 bytes"

    moved, apart = 0.0, 0.0
    for start, one, other in zip(before, state(agents["adamw"]), state(agents["adamw_8bit"]), strict=True):
        moved += float((one - start).square().sum())
        apart += float((one - other).square().sum())
    assert 0 < apart < 0.1 * moved

    again = learner(optimizer="adamw_8bit")
    again.load(str(tmp_path / "adamw_8bit"), STEPS)
    assert same(state(again), state(agents["adamw_8bit"]))
    for of in (agents["adamw_8bit"], again):
        update(of, group(0.0, 1.0, 3.0))
    assert same(state(again), state(agents["adamw_8bit"]))


def test_8_bit_adamw_without_bitsandbytes_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)  # as if it were not installed
    with pytest.raises(UserError, match=r"bitsandbytes, which is not installed: pip install 'marl-ray\[adamw-8bit\]'"):
        require_optimizer(OptimizerConfig(optimizer="adamw_8bit"))
    require_optimizer(OptimizerConfig())
