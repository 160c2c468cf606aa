"""Losses against their definitions in NumPy and float64: values, clipping, gradients and invariances."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_ray.config import OptimizerConfig
from marl_ray.core.batch import Batch
from marl_ray.learning.gradient_accumulator import GradientAccumulator
from marl_ray.learning.losses.gspo import sequence_ratios
from marl_ray.learning.losses.m2po import second_moment, second_moment_threshold
from marl_ray.learning.losses.ratios import clipped_loss, is_clipped, token_ratios
from marl_ray.learning.micro_batches import Layout
from marl_ray.learning.policy_model import LogprobModel
from marl_ray.learning.prompt_rows import PromptRow, WeightedCompletion
from tests.learning.builders import VOCABULARY, build_batch, some_groups, tiny_learner
from tests.learning.reference_learner import TEMPERATURE, Weights, numpy_logprobs, slopes, weights_of

LOW, HIGH, M2_BOUND = 0.8, 1.28, 0.04
SETTINGS = {"clip_low": 1 - LOW, "clip_high": HIGH - 1, "m2_bound": M2_BOUND, "importance": "none"}
RATIOS = ["clip", "gspo", "m2po"]
small = st.floats(-3, 3)
Tokens = list[list[tuple[float, float, float]]]
"""Per completion, its tokens: log-probability of the policy, old log-probability and weight."""
tokens = st.lists(st.lists(st.tuples(small, small, small), min_size=1, max_size=4), min_size=1, max_size=4)


# Definitions, per completion and token.


def clipped_term(ratio: float, weight: float) -> float:
    return -min(ratio * weight, min(max(ratio, LOW), HIGH) * weight)


def clip(completions: Sequence[Sequence[tuple[float, float, float]]]) -> float:
    return sum(clipped_term(math.exp(new - old), weight) for one in completions for new, old, weight in one)


def gspo(completions: Sequence[Sequence[tuple[float, float, float]]]) -> float:
    """Return GSPO's loss; the weight of a completion is that of its first token."""
    ratios = [math.exp(np.mean([new - old for new, old, _ in one])) for one in completions]
    return sum(clipped_term(ratio, one[0][2]) for ratio, one in zip(ratios, completions, strict=True))


def kept_by_m2(log_ratios: Sequence[float]) -> set[int]:
    """Return the tokens that remain after dropping the furthest ones."""
    kept = set(range(len(log_ratios)))
    while kept and np.mean([log_ratios[i] ** 2 for i in kept]) > M2_BOUND:
        furthest = max(abs(log_ratios[i]) for i in kept)
        kept -= {i for i in kept if abs(log_ratios[i]) == furthest}
    return kept


def m2po(completions: Sequence[Sequence[tuple[float, float, float]]]) -> float:
    every = [token for one in completions for token in one]
    kept = kept_by_m2([new - old for new, old, _ in every])
    return -sum(math.exp(new - old) * weight for i, (new, old, weight) in enumerate(every) if i in kept)


DEFINITIONS: dict[str, Callable[[Sequence[Sequence[tuple[float, float, float]]]], float]] = {
    "clip": clip,
    "gspo": gspo,
    "m2po": m2po,
}


@settings(max_examples=200, deadline=None)
@given(completions=tokens)
def test_values_follow_the_definitions(completions: Tokens) -> None:
    new, old, weights = torch.tensor([t for one in completions for t in one], dtype=torch.float64).T
    ratios = token_ratios(new, old)
    assert float(clipped_loss(ratios, weights, LOW, HIGH)) == pytest.approx(clip(completions))
    reach = second_moment_threshold(new - old, M2_BOUND)
    assert float(second_moment(new - old, weights, reach)) == pytest.approx(m2po(completions))
    owners = torch.tensor([i for i, one in enumerate(completions) for _ in one])
    alike = [[(n, o, one[0][2]) for n, o, _ in one] for one in completions]
    each = torch.tensor([weight / len(one) for one in alike for _, _, weight in one], dtype=torch.float64)
    ratios = sequence_ratios(new, old, owners)
    assert float(clipped_loss(ratios, each, LOW, HIGH)) == pytest.approx(gspo(alike))


@settings(max_examples=100, deadline=None)
@given(completions=tokens)
def test_clipped_tokens_have_no_gradient(completions: Tokens) -> None:
    new, old, weights = torch.tensor([t for one in completions for t in one], dtype=torch.float64).T
    new = new.clone().requires_grad_()
    ratios = token_ratios(new, old)
    clipped_loss(ratios, weights, LOW, HIGH).backward()
    assert new.grad is not None
    stopped = is_clipped(ratios.detach(), weights, LOW, HIGH)
    expected = torch.where(stopped, 0.0, -ratios.detach() * weights)
    torch.testing.assert_close(new.grad, expected)


def test_hand_computed_second_moment_thresholds() -> None:
    # The squares are 0.01, 0.04, 0.09 and 1; the means of the smallest 1 to 4 are 0.01, 0.025, 0.047 and 0.285.
    log_ratios = torch.tensor([-0.3, 0.1, 1.0, -0.2])
    assert second_moment_threshold(log_ratios, 0.04) == pytest.approx(0.25)
    assert second_moment_threshold(log_ratios, 0.05) == pytest.approx(0.65)
    assert second_moment_threshold(log_ratios, 0.3) == math.inf
    assert second_moment_threshold(log_ratios, 0.001) < 0
    weights = torch.ones(4)
    assert float(second_moment(log_ratios, weights, 0.25)) == pytest.approx(-math.exp(0.1) - math.exp(-0.2))
    assert float(second_moment(torch.tensor([1e4, 0.0]), weights[:2], 1.0)) == -1.0, "dropped tokens are not NaN"


# With the tiny policy.


def moved_rows(weights: Weights) -> list[PromptRow]:
    """Return completions whose old and behaviour log-probabilities differ from the policy's."""
    chance = np.random.default_rng(3)

    def completion(prompt: Sequence[int], length: int) -> WeightedCompletion:
        ids = chance.integers(VOCABULARY, size=length).tolist()
        now = numpy_logprobs(weights, prompt, ids)
        old, behaviour = ((now - chance.normal(0, 0.3, size=length)).tolist() for _ in range(2))
        return WeightedCompletion(tuple(ids), tuple(behaviour), float(chance.normal()), old_logprobs=tuple(old))

    prompts = [(5, 6, 7), (8,), (9, 10)]
    return [PromptRow(p, tuple(completion(p, int(n)) for n in chance.integers(1, 9, size=4))) for p in prompts]


def computed(
    folder: Path, layout: Layout, rows: Sequence[PromptRow], **changes: Any
) -> tuple[GradientAccumulator, np.ndarray]:
    """Return the accumulated gradient of these rows in float64 (log-probabilities in float32), and the same as one
    vector."""
    learner = tiny_learner(folder, layout)
    policy = learner.policy.double()
    made = GradientAccumulator(
        LogprobModel(policy, layout, TEMPERATURE, torch.float64), OptimizerConfig(**(SETTINGS | changes))
    )
    made.add(rows, len(rows))
    made.close(3)
    return made, np.concatenate([p.grad.double().numpy().ravel() for p in policy.parameters()])


@pytest.mark.parametrize("layout", ["packed", "padded"])
@pytest.mark.parametrize("loss", RATIOS)
def test_gradient_equals_numerical_differentiation(tiny_policy: Path, layout: Layout, loss: str) -> None:
    policy = tiny_learner(tiny_policy).policy
    weights = weights_of(policy)
    rows = moved_rows(weights)
    completions = [(row.prompt_ids, c) for row in rows for c in row.completions]

    def terms(moved: Weights) -> Tokens:
        """Return the terms of each token; m2po's ratios refer to the sampler, the others to the old policy."""
        found = []
        for prompt, c in completions:
            start = c.behaviour_logprobs if loss == "m2po" else c.old_logprobs
            assert start is not None
            now = numpy_logprobs(moved, prompt, c.token_ids)
            found.append([(float(n), float(o), c.weight) for n, o in zip(now, start, strict=True)])
        return found

    made, vector = computed(tiny_policy, layout, rows, loss=loss, microbatch_tokens=30)
    assert made.loss == pytest.approx(DEFINITIONS[loss](terms(weights)) / 3, rel=1e-5)
    split = np.split(vector, np.cumsum([w.size for w in weights.values()])[:-1])
    gradient = {name: part.reshape(w.shape) for (name, w), part in zip(weights.items(), split, strict=True)}
    for said, slope in slopes(lambda moved: DEFINITIONS[loss](terms(moved)) / 3, weights, gradient, step=1e-6):
        assert said == pytest.approx(slope, rel=1e-4, abs=1e-4)

    every = [token for one in terms(weights) for token in one]
    own = np.array([new - old for new, old, _ in every])
    drift = made.clipping.stats
    assert drift is not None
    assert drift.kl == pytest.approx((np.exp(own) - 1 - own).mean(), rel=1e-4)
    if loss == "gspo":
        ratios = np.concatenate([[math.exp(np.mean([n - o for n, o, _ in one]))] * len(one) for one in terms(weights)])
    else:
        ratios = np.exp(own)
    if loss == "m2po":
        stopped = 1 - len(kept_by_m2(own.tolist())) / len(own)
    else:
        signs = np.array([weight for _, _, weight in every])
        stopped = (((ratios > HIGH) & (signs > 0)) | ((ratios < LOW) & (signs < 0))).mean()
    assert 0 < stopped < 1
    assert drift.clip_fraction == pytest.approx(stopped)
    assert (drift.ratio_mean, drift.ratio_max) == pytest.approx((ratios.mean(), ratios.max()), rel=1e-4)


COVARIANCE_LOSSES = pytest.mark.plugins("covariance_losses")


@pytest.mark.parametrize(
    ("loss", "importance"),
    [
        *((loss, "none") for loss in ("m2po", "cispo", "sapo", "gmpo")),
        *((loss, "none") for loss in ("dppo", "dppo_kl")),
        *(pytest.param(loss, "none", marks=COVARIANCE_LOSSES) for loss in ("clip_cov", "kl_cov")),
        *((loss, mode) for loss in ("policy_gradient", "clip", "gspo") for mode in ("none", "mask")),
    ],
)
def test_layout_and_micro_batch_size_change_nothing(tiny_policy: Path, loss: str, importance: str) -> None:
    rows = moved_rows(weights_of(tiny_learner(tiny_policy).policy))
    changes = {"loss": loss, "importance": importance, "importance_bound": 1.2}
    made, vector = computed(tiny_policy, "packed", rows, **changes, microbatch_tokens=10_000)
    layouts: list[tuple[Layout, int]] = [("packed", 1), ("packed", 20), ("padded", 20), ("padded", 10_000)]
    for layout, size in layouts:
        other, found = computed(tiny_policy, layout, rows[::-1], **changes, microbatch_tokens=size)
        assert np.abs(found - vector).max() < 1e-6 * np.abs(vector).max()
        assert other.loss == pytest.approx(made.loss, rel=1e-6)
        assert other.entropy == pytest.approx(made.entropy, rel=1e-6)
        if made.clipping.stats is not None:
            assert other.clipping.stats is not None
            assert other.clipping.stats.kl == pytest.approx(made.clipping.stats.kl, rel=1e-5)


@pytest.mark.parametrize("loss", ["clip", "gspo"])
def test_the_old_policy_is_the_policy_before_the_first_step(tiny_policy: Path, loss: str) -> None:
    batch = build_batch(some_groups(20, 5), 10)
    both, first = tiny_learner(tiny_policy, loss=loss), tiny_learner(tiny_policy, loss=loss)
    before = weights_of(first.policy)
    alone = first.update(Batch(0, batch.mini_batches[:1]))
    assert alone.clipping is not None
    assert (alone.clipping.ratio_mean, alone.clipping.ratio_max) == (1.0, 1.0), "exactly 1 in the first step"
    assert (alone.clipping.clip_fraction, alone.clipping.kl) == (0.0, 0.0)
    stats = both.update(batch)
    assert stats.clipping is not None

    after = weights_of(first.policy)
    own = []  # log-ratios of each completion with a gradient
    for now, mini_batch in zip((before, after), batch.mini_batches, strict=True):
        for group in mini_batch.groups:
            for c, weight in zip(group.completions, group.weights, strict=True):
                if weight != 0:
                    new, old = (numpy_logprobs(w, group.prompt_ids, c.token_ids) for w in (now, before))
                    own.append(new - old)
    every = np.concatenate(own)
    assert stats.clipping.kl == pytest.approx((np.exp(every) - 1 - every).mean(), rel=1e-3)
    ratios = np.exp(every) if loss == "clip" else np.concatenate([np.full(len(o), math.exp(o.mean())) for o in own])
    assert stats.clipping.ratio_mean == pytest.approx(ratios.mean(), rel=1e-4)
    assert stats.clipping.ratio_max == pytest.approx(ratios.max(), rel=1e-3)


def test_the_first_clipped_step_equals_the_policy_gradient(tiny_policy: Path) -> None:
    batch = build_batch(some_groups(20, 6), 20)
    plain, clip_ = tiny_learner(tiny_policy), tiny_learner(tiny_policy, loss="clip")
    one, other = plain.update(batch), clip_.update(batch)
    assert one.grad_norm == pytest.approx(other.grad_norm, rel=1e-6)
    for a, b in zip(plain.policy.parameters(), clip_.policy.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-6)
    assert one.clipping is None
    assert one.entropy == other.entropy


def test_entropy_is_measured_before_the_update(tiny_policy: Path) -> None:
    learner = tiny_learner(tiny_policy)
    weights = weights_of(learner.policy)
    batch = build_batch(some_groups(6, 7), 3)
    found = []
    for group in batch.mini_batches[0].groups:
        for c, weight in zip(group.completions, group.weights, strict=True):
            for k in range(len(c.token_ids) if weight else 0):
                seen = (*group.prompt_ids, *c.token_ids[:k])
                logs = np.array([numpy_logprobs(weights, seen, [t])[0] for t in range(VOCABULARY)])
                found.append(-(np.exp(logs) * logs).sum())
    assert learner.update(batch).entropy == pytest.approx(np.mean(found), rel=1e-4)
