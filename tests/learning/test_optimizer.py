"""AdamW with numbers of 8 bits: what it keeps, how it learns, and how it goes on."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from marl_ray.config import OptimizerConfig
from marl_ray.core.errors import UserError
from marl_ray.learning.arguments import require_optimizer
from marl_ray.learning.learner import STATE_FILE
from tests.learning.test_learner import group, learner, same, state, update

STEPS = 4


def test_8_bits_keep_a_quarter_learn_alike_and_go_on_to_the_same_bits(tmp_path: Path) -> None:
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
    assert small < 0.3 * whole, "a byte, a scale for every 256, and small tensors as they were"

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


def test_8_bits_without_their_library_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)  # as if it were not there
    with pytest.raises(UserError, match=r"bitsandbytes, which is not installed: pip install 'marl-ray\[adamw-8bit\]'"):
        require_optimizer(OptimizerConfig(optimizer="adamw_8bit"))
    require_optimizer(OptimizerConfig())
