"""The reference policy: effects of its KL divergence on returns, weights and gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_ray.core.batch import Batch, Group, MiniBatch
from marl_ray.learning.kl_estimates import k1, k2, k3
from marl_ray.learning.learner import Learner
from marl_ray.learning.micro_batches import Layout
from tests.learning.builders import assert_same_state, build_batch, some_groups, stream, tiny_learner
from tests.learning.reference_learner import Weights, numpy_logprobs, slopes, weights_of

COEFFICIENT = 0.3
WHERE = ["k1_in_reward", "k3_in_reward", "k2_in_loss", "k3_in_loss"]


@settings(max_examples=100, deadline=None)
@given(scores=st.lists(st.tuples(st.floats(-4, 4), st.floats(-4, 4)), min_size=2, max_size=6))
def test_the_mean_of_both_estimates_is_the_divergence(scores: list[tuple[float, float]]) -> None:
    # The mean is over all tokens of a vocabulary, weighted by the policy's probabilities.
    policy, reference = torch.tensor(scores, dtype=torch.float64).T.log_softmax(-1)
    divergence = float((policy.exp() * (policy - reference)).sum())
    for estimate in (k1, k3):
        assert float((policy.exp() * estimate(policy, reference)).sum()) == pytest.approx(divergence, abs=1e-9)
    assert bool((k3(policy, reference) >= -1e-12).all()), "up to rounding"


@settings(max_examples=100, deadline=None)
@given(scores=st.lists(st.tuples(st.floats(-4, 4), st.floats(-4, 4)), min_size=2, max_size=6))
def test_only_k1_in_the_reward_has_the_gradient_of_the_divergence(scores: list[tuple[float, float]]) -> None:
    # A reward acts through the score: E[estimate * grad log pi]. docs/explanation/losses.md states k3's gradient.
    logits, of_reference = torch.tensor(scores, dtype=torch.float64).T
    logits.requires_grad_()
    policy, reference = logits.log_softmax(-1), of_reference.log_softmax(-1)
    forward = (policy.exp() * (policy - reference)).sum()
    backward = (reference.exp() * (reference - policy)).sum()
    for estimate, divergence in ((k1, forward), (k3, forward - backward)):
        credited = (policy.exp() * estimate(policy, reference)).detach()
        (found,) = torch.autograd.grad((credited * policy).sum(), logits, retain_graph=True)
        (wanted,) = torch.autograd.grad(divergence, logits, retain_graph=True)
        assert found.numpy() == pytest.approx(wanted.numpy(), abs=1e-9)


@settings(max_examples=100, deadline=None)
@given(scores=st.lists(st.tuples(st.floats(-4, 4), st.floats(-4, 4)), min_size=2, max_size=6))
def test_in_the_loss_k2_has_the_gradient_of_the_divergence_and_k3_that_of_its_reverse(
    scores: list[tuple[float, float]],
) -> None:
    # A term of the loss acts through its own gradient, on tokens that are sampled from the policy.
    logits, of_reference = torch.tensor(scores, dtype=torch.float64).T
    logits.requires_grad_()
    policy, reference = logits.log_softmax(-1), of_reference.log_softmax(-1)
    forward = (policy.exp() * (policy - reference)).sum()
    backward = (reference.exp() * (reference - policy)).sum()
    for estimate, divergence in ((k2, forward), (k3, backward)):
        sampled = (policy.exp().detach() * estimate(policy, reference)).sum()
        (found,) = torch.autograd.grad(sampled, logits, retain_graph=True)
        (wanted,) = torch.autograd.grad(divergence, logits, retain_graph=True)
        assert found.numpy() == pytest.approx(wanted.numpy(), abs=1e-9)


def moved(learner: Learner) -> Learner:
    """Change the policy, so that it differs from the reference."""
    chance = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for parameter in learner.policy.parameters():
            parameter += 0.02 * torch.randn(parameter.shape, generator=chance)
    return learner


def summed(weights: Weights, group: Group) -> list[np.ndarray]:
    return [numpy_logprobs(weights, group.prompt_ids, c.token_ids) for c in group.completions]


def divergences(where: str, policy: Sequence[np.ndarray], reference: Sequence[np.ndarray]) -> np.ndarray:
    """Return the estimate per completion."""
    gaps = [r - p for p, r in zip(policy, reference, strict=True)]
    forms = {"k1": lambda gap: -gap, "k2": lambda gap: gap**2 / 2, "k3": lambda gap: np.exp(gap) - 1 - gap}
    return np.array([forms[where[:2]](gap).sum() for gap in gaps])


@pytest.mark.parametrize("layout", ["packed", "padded"])
@pytest.mark.parametrize("where", WHERE)
def test_gradient_equals_numerical_differentiation(tiny_policy: Path, layout: Layout, where: str) -> None:
    settings = {"reference_kl": where, "microbatch_tokens": 20, "max_grad_norm": 1e9}
    learner = tiny_learner(tiny_policy, layout, kl=COEFFICIENT, **settings)
    start = weights_of(learner.policy)
    now = weights_of(moved(learner).policy)
    batch = build_batch(some_groups(5, 3), 5)
    (mini_batch,) = batch.mini_batches
    weights = []
    for group in mini_batch.groups:
        returns = np.array(group.returns)
        if where.endswith("in_reward"):
            returns = returns - COEFFICIENT * divergences(where, summed(now, group), summed(start, group))
        weights.append((returns - returns.mean()) / len(returns))

    def loss(policy: Weights) -> float:
        total = 0.0
        for group, of_group in zip(mini_batch.groups, weights, strict=True):
            ours, theirs = summed(policy, group), summed(start, group)
            total -= sum(w * p.sum() for w, p in zip(of_group, ours, strict=True))
            if where.endswith("in_loss"):
                total += COEFFICIENT * divergences(where, ours, theirs).mean()
        return total / mini_batch.normalizer

    stats = learner.update(batch)
    found = {name: p.grad.double().numpy() for name, p in learner.policy.named_parameters()}
    assert stats.loss == pytest.approx(loss(now), rel=1e-4)
    for said, slope in slopes(loss, now, found, step=1e-6):
        assert said == pytest.approx(slope, rel=1e-3, abs=1e-3)
    tokens = sum(len(c.token_ids) for g in mini_batch.groups for c in g.completions)
    k3s = [divergences("k3", summed(now, g), summed(start, g)).sum() for g in mini_batch.groups]
    assert stats.reference_kl == pytest.approx(sum(k3s) / tokens, rel=1e-3)


@pytest.mark.parametrize("loss", ["clip", "gspo", "gmpo"])
def test_the_divergence_has_the_same_weight_in_every_loss(tiny_policy: Path, loss: str) -> None:
    # Losses with one ratio per completion do not average the divergence over its tokens.
    groups = [replace(group, returns=(1.0,) * len(group.returns)) for group in some_groups(5, 3)]
    gradients = []
    for name in ("policy_gradient", loss):
        options = {"reference_kl": "k3_in_loss", "max_grad_norm": 1e9, "loss": name}
        learner = moved(tiny_learner(tiny_policy, kl=COEFFICIENT, **options))
        silent = [replace(group, weights=(0.0,) * len(group.weights)) for group in groups]
        learner.update(build_batch(silent, 5))
        gradients.append(torch.cat([p.grad.flatten() for p in learner.policy.parameters() if p.grad is not None]))
    assert float(gradients[0].norm()) > 0
    torch.testing.assert_close(gradients[1], gradients[0])


@pytest.mark.parametrize("where", WHERE)
def test_portions_are_bit_identical(tiny_policy: Path, where: str) -> None:
    # This includes a second mini-batch, which is scored before the first step.
    batch = build_batch(some_groups(20, 8), 14)
    whole, streamed = (
        moved(tiny_learner(tiny_policy, kl=COEFFICIENT, reference_kl=where, microbatch_tokens=16)) for _ in range(2)
    )
    assert stream(streamed, batch, [3, 4, 11]) == whole.update(batch)
    assert_same_state(whole, streamed)


@pytest.mark.parametrize("where", WHERE)
def test_the_initial_divergence_is_exactly_zero(tiny_policy: Path, where: str) -> None:
    learner, plain = tiny_learner(tiny_policy, kl=COEFFICIENT, reference_kl=where), tiny_learner(tiny_policy)
    batch = build_batch(some_groups(10, 9), 10)
    found = learner.update(batch)
    assert found.reference_kl == 0.0
    assert found.loss == pytest.approx(plain.update(batch).loss, rel=1e-4), (
        "up to rounding, because more is computed at once"
    )


def test_equal_rewards_are_ranked_by_the_divergence(tiny_policy: Path) -> None:
    (mini_batch,) = build_batch(some_groups(4, 10), 4).mini_batches
    groups = tuple(
        replace(g, returns=(1.0,) * len(g.returns), weights=(0.0,) * len(g.weights)) for g in mini_batch.groups
    )
    batch = Batch(0, (MiniBatch(groups, 4),))
    assert tiny_learner(tiny_policy, kl=COEFFICIENT).update(batch).optimizer_steps == 0, (
        "policy and reference are equal at the start"
    )
    assert moved(tiny_learner(tiny_policy)).update(batch).optimizer_steps == 0
    assert moved(tiny_learner(tiny_policy, kl=COEFFICIENT)).update(batch).optimizer_steps == 1


def test_the_reference_stays_the_initial_model(tiny_policy: Path, tmp_path: Path) -> None:
    learner = tiny_learner(tiny_policy, kl=COEFFICIENT)
    learner.update(build_batch(some_groups(10, 11), 10))
    learner.save(str(tmp_path))
    batch = replace(build_batch(some_groups(10, 12), 10), step=1)
    resumed = tiny_learner(tiny_policy, kl=COEFFICIENT)
    resumed.load(str(tmp_path), 1)
    found = learner.update(batch)
    assert found.reference_kl is not None
    assert found.reference_kl > 0
    assert resumed.update(batch) == found
