"""The learner in this process: what an update changes, and what it leaves alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from marl_ray.config import AlgorithmConfig, ModelConfig
from marl_ray.core.messages import Completion, Group, UpdateStats
from marl_ray.learning.learner import Learner
from marl_ray.telemetry.metrics import update_metrics
from marl_ray.toy import BASE_PATH


def learner(**settings: Any) -> Learner:
    algorithm = AlgorithmConfig(
        learning_rate=1e-3, estimator="magrpo", turn_gradient_weights=[1.0], weight_decay=0.1, lr_scheduler="linear"
    )
    for name, value in settings.items():
        setattr(algorithm, name, value)
    return Learner(0, str(BASE_PATH), ModelConfig(name=str(BASE_PATH)), algorithm, "float32", 10, 1)


def group(*returns: float) -> Group:
    completions = tuple(Completion((5 + i, 6, 0), "", (-1.0, -1.0, -1.0), "stop", 0) for i in range(len(returns)))
    return Group(0, (10, 11, 12), completions, returns)


def state(of: Learner) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in of.policy.parameters()]


def same(before: list[torch.Tensor], after: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_a_step_without_a_gradient_changes_nothing() -> None:
    agent = learner()
    moved = agent.update([group(1.0, 0.0)])
    assert (moved.optimizer_steps, moved.skipped_steps) == (1, 0)
    assert moved.logprob_gap is not None
    weights, rate = state(agent), agent.schedule.get_last_lr()
    still = agent.update([group(1.0, 1.0), group(2.0, 2.0)])
    assert still == UpdateStats(0.0, 0.0, rate[0], None, 0, 0)
    assert same(weights, state(agent)), "neither momentum nor weight decay moves them"
    assert agent.schedule.get_last_lr() == rate
    again = agent.update([group(1.0, 0.0)])
    assert again.learning_rate == rate[0] < moved.learning_rate
    assert not same(weights, state(agent))


def test_mini_batches_without_a_gradient_are_no_optimizer_steps() -> None:
    agent = learner(train_batch_size=1)
    stats = agent.update([group(1.0, 1.0), group(1.0, 0.0), group(0.0, 0.0)])
    assert (stats.optimizer_steps, stats.skipped_steps) == (1, 0)
    assert stats.grad_norm > 0
    assert stats.logprob_gap is not None
    assert stats.logprob_gap > 0, "of the first that computed something"


def test_a_loss_that_is_not_finite_leaves_no_trace() -> None:
    agent, healthy = learner(), learner()
    weights = state(agent)
    stats = agent.update([group(float("inf"), 0.0)])
    assert (stats.optimizer_steps, stats.skipped_steps) == (0, 1)
    assert same(weights, state(agent))
    assert agent.update([group(1.0, 0.0)]) == healthy.update([group(1.0, 0.0)])
    assert same(state(agent), state(healthy))


def test_both_layouts_take_the_same_step() -> None:
    packed, padded = learner(), learner()
    assert packed.layout == "packed"
    assert packed.ready() == []
    padded.layout, padded.why_padded = "padded", "asked for"
    padded.policy.set_attn_implementation("sdpa")
    assert padded.ready() == [
        "agent 0: learns in padded batches with the model's own attention, which takes longer: asked for"
    ]
    groups = [group(1.0, 0.0, 3.0), replace(group(2.0, 1.0), prompt_ids=(20,))]
    one, other = packed.update(groups), padded.update(groups)
    for name in ("loss", "grad_norm", "logprob_gap"):
        assert getattr(one, name) == pytest.approx(getattr(other, name), rel=1e-4)
    for a, b in zip(state(packed), state(padded), strict=True):
        assert (a - b).abs().mean() < 1e-5, "AdamW's first step is the gradient's sign, so that rounding shows"


def test_a_row_has_no_gap_that_nobody_measured() -> None:
    stats = UpdateStats(0.0, 0.0, 1e-3, None, 0, 0)
    assert "agent_1/logprob_gap" not in update_metrics(1, stats, 4)
    assert update_metrics(1, replace(stats, logprob_gap=0.5), 4)["agent_1/logprob_gap"] == 0.5
    assert update_metrics(1, stats, 4)["agent_1/weight_version"] == 4
