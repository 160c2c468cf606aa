"""Gradients of policy and critic: clipped together, clipped each by itself, or of separate layers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from marl_ray.learning.gradient_accumulator import GradientAccumulator
from marl_ray.learning.learner import Learner
from tests.learning.critic_builders import critic_of, learner_of, some_groups

BOUND = 0.05
"""Smaller than both gradients, so that each is clipped."""


def accumulated(learner: Learner) -> GradientAccumulator:
    groups = some_groups(3)
    gradient = GradientAccumulator(learner.logprob_model, learner.settings)
    ((rows, estimates),) = learner._prepare([groups])
    gradient.add(rows, len(groups))
    gradient.value_estimates += estimates
    gradient.close(len(groups))
    return gradient


def gradients(learner: Learner) -> torch.Tensor:
    """Return all gradients of the policy's parameters as one vector, in float64."""
    parameters = learner.policy.parameters()
    return torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in parameters]).double()


def test_each_gradient_is_clipped_before_they_are_added(tiny_policy: Path) -> None:
    learner = learner_of(tiny_policy, "iac", "td", max_grad_norm=BOUND, clip_separately=True)
    gradient = accumulated(learner)
    of_policy = gradients(learner)
    learner.policy.zero_grad()
    critic_of(learner).backward(gradient.value_estimates)
    of_value = gradients(learner)
    assert min(of_policy.norm(), of_value.norm()) > BOUND

    learner = learner_of(tiny_policy, "iac", "td", max_grad_norm=BOUND, clip_separately=True)
    gradient = accumulated(learner)
    result = learner._optimizer_step(gradient)
    expected = BOUND * (of_policy / of_policy.norm() + of_value / of_value.norm())
    torch.testing.assert_close(gradients(learner), expected, rtol=1e-4, atol=1e-6)
    assert result.grad_norm == pytest.approx(float(torch.hypot(of_policy.norm(), of_value.norm())), rel=1e-4)
    assert result.taken


def test_a_body_of_its_own_leaves_the_policys_gradient_alone(tiny_policy: Path) -> None:
    learner = learner_of(tiny_policy, "iac", "td", body="own")
    gradient = accumulated(learner)
    before = gradients(learner)
    critic = critic_of(learner)
    assert critic._body.model is not learner.policy
    critic.backward(gradient.value_estimates)
    assert torch.equal(gradients(learner), before)
    assert critic.clip() > 0
    assert len(learner.modules()) == 3
