"""Importance factors and ratio statistics, each against an independent computation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from marl_ray.core.batch import Batch, Group, MiniBatch
from marl_ray.core.episode import Completion, sibling_calls
from marl_ray.learning.importance import exceeds_bound, importance_factors
from marl_ray.learning.learner import Learner
from marl_ray.learning.micro_batches import Layout
from tests.factories import with_completions
from tests.learning.builders import VOCABULARY, tiny_learner
from tests.learning.reference_learner import TEMPERATURE, Weights, numpy_logprobs, slopes, weights_of

BOUND = 2.0


def factor(ratio: float, mode: str) -> float:
    """Return the factor by its definition."""
    if mode == "truncate":
        return min(ratio, BOUND)
    if mode == "mask":
        return ratio if 1 / BOUND <= ratio <= BOUND else 0.0
    return 1.0


def completion(ids: Sequence[int], logprobs: Sequence[float]) -> Completion:
    return Completion(tuple(ids), "", tuple(logprobs), "stop", ((0, len(ids)),))


def given_group(prompt: Sequence[int], completions: Sequence[Completion], weights: Sequence[float]) -> Group:
    return Group(0, sibling_calls(tuple(prompt), completions), (0.0,) * len(completions), tuple(weights))


def one_batch(*groups: Group, normalizer: int = 1) -> Batch:
    return Batch(0, (MiniBatch(groups, normalizer),))


def gradient(learner: Learner, batch: Batch) -> dict[str, np.ndarray]:
    """Return the gradient that an update leaves in the parameters."""
    learner.update(batch)
    return {name: p.grad.double().numpy() for name, p in learner.policy.named_parameters()}


@pytest.mark.parametrize("ratio", [0.0, 0.49, 0.5, 1.0, 2.0, 2.01, 1e30])
@pytest.mark.parametrize("mode", ["none", "truncate", "mask"])
def test_factors_follow_the_definition(ratio: float, mode: str) -> None:
    given = torch.tensor([ratio], requires_grad=True)
    found = importance_factors(given, mode, BOUND)
    assert not found.requires_grad
    assert found.item() == pytest.approx(factor(ratio, mode))
    below = mode == "mask" and ratio < 1 / BOUND
    assert exceeds_bound(given, mode, BOUND).item() == (ratio > BOUND or below)


def test_importance_auto_must_be_resolved_first() -> None:
    with pytest.raises(ValueError, match="importance should be none, truncate or mask, not auto"):
        importance_factors(torch.ones(1), "auto", BOUND)


def off_policy_groups(weights: Weights) -> list[Group]:
    """Return completions of unequal lengths from a sampler whose ratios exceed both bounds."""
    chance = np.random.default_rng(0)

    def sampled(prompt: Sequence[int], length: int) -> Completion:
        tokens = chance.integers(VOCABULARY, size=length).tolist()
        return completion(tokens, numpy_logprobs(weights, prompt, tokens) - chance.uniform(-1.5, 1.5, size=length))

    prompts = [(5, 6, 7), (8,), (9, 10)]
    return [
        given_group(prompt, [sampled(prompt, int(n)) for n in chance.integers(1, 9, size=4)], chance.normal(size=4))
        for prompt in prompts
    ]


@pytest.mark.parametrize("layout", ["packed", "padded"])
@pytest.mark.parametrize("mode", ["none", "truncate", "mask"])
def test_gradient_equals_numerical_differentiation(tiny_policy: Path, layout: Layout, mode: str) -> None:
    learner = tiny_learner(tiny_policy, layout, microbatch_tokens=30, importance=mode, max_grad_norm=1e9)
    weights = weights_of(learner.policy)
    groups, normalizer = off_policy_groups(weights), 3
    completions = [(g.prompt_ids, c, w) for g in groups for c, w in zip(g.completions, g.weights, strict=True)]
    ratios = [np.exp(numpy_logprobs(weights, prompt, c.token_ids) - c.logprobs) for prompt, c, _ in completions]
    factors = [np.array([factor(ratio, mode) for ratio in found]) for found in ratios]

    def loss(moved: Weights) -> float:
        """Return the loss with the factors of the unchanged policy."""
        parts = (
            weight * (fixed * numpy_logprobs(moved, prompt, c.token_ids)).sum()
            for (prompt, c, weight), fixed in zip(completions, factors, strict=True)
        )
        return -sum(parts) / normalizer

    batch = one_batch(*groups, normalizer=normalizer)
    stats = learner.update(batch)
    found = {name: p.grad.double().numpy() for name, p in learner.policy.named_parameters()}
    assert stats.loss == pytest.approx(loss(weights), rel=1e-4)
    for said, slope in slopes(loss, weights, found):
        assert said == pytest.approx(slope, rel=1e-3, abs=1e-3)

    every = np.concatenate(ratios)
    outside = every > BOUND
    if mode == "mask":
        outside |= every < 1 / BOUND
    assert 0 < outside.mean() < 1
    assert stats.importance_ratios is not None
    assert asdict(stats.importance_ratios) == pytest.approx(
        {
            "mean": every.mean(),
            "max": every.max(),
            "cut": outside.mean(),
            "effective_sample_size": every.sum() ** 2 / (len(every) * (every**2).sum()),
        },
        rel=1e-4,
    )


@pytest.mark.parametrize("mode", ["none", "truncate", "mask"])
def test_gradient_of_a_softmax_bandit_equals_the_closed_form(tiny_policy: Path, mode: str) -> None:
    # With one prompt and completions of one token, the logits' gradient is -sum of weight * factor * (chosen - pi) / T.
    learner = tiny_learner(tiny_policy, importance=mode, max_grad_norm=1e9)
    prompt, arms, weights, normalizer = (5, 6), [3, 8, 8, 20], [0.5, -1.0, 0.25, 2.0], 5
    policy = arm_probabilities(learner, prompt)
    wanted = [0.3, 1.7, 2.5, 4.0]  # ratios
    chosen = [completion([a], [math.log(policy[a] / r)]) for a, r in zip(arms, wanted, strict=True)]
    group = given_group(prompt, chosen, weights)
    hidden = last_state(learner, prompt)
    scores = np.zeros(VOCABULARY)
    for arm, ratio, weight in zip(arms, wanted, weights, strict=True):
        scores -= weight * factor(ratio, mode) * (np.eye(VOCABULARY)[arm] - policy) / TEMPERATURE / normalizer
    found = gradient(learner, one_batch(group, normalizer=normalizer))["lm_head.weight"]
    np.testing.assert_allclose(found, np.outer(scores, hidden), rtol=1e-4, atol=1e-6)


def last_state(learner: Learner, prompt: Sequence[int]) -> np.ndarray:
    """Return the hidden state from which the first token's logits are computed."""
    states: list[torch.Tensor] = []
    watched = learner.policy.lm_head.register_forward_pre_hook(lambda _module, inputs: states.append(inputs[0]))
    arm_probabilities(learner, prompt)
    watched.remove()
    return states[0][0, -1].detach().double().numpy()


def arm_probabilities(learner: Learner, prompt: Sequence[int]) -> np.ndarray:
    """Return the probabilities of the first token at the temperature."""
    attention_of_run = learner.policy.config._attn_implementation
    learner.policy.set_attn_implementation("eager")
    with torch.no_grad():
        scores = learner.policy(input_ids=torch.tensor([prompt]), use_cache=False).logits[0, -1].double()
    learner.policy.set_attn_implementation(attention_of_run)
    return torch.softmax(scores / TEMPERATURE, 0).numpy()


@pytest.mark.parametrize("mode", ["truncate", "mask"])
def test_on_policy_factors_are_one(tiny_policy: Path, mode: str) -> None:
    plain, corrected = tiny_learner(tiny_policy), tiny_learner(tiny_policy, importance=mode)
    weights = weights_of(plain.policy)

    def on_policy(group: Group) -> Group:
        own = [numpy_logprobs(weights, group.prompt_ids, c.token_ids) for c in group.completions]
        return with_completions(
            group, [replace(c, logprobs=tuple(p)) for c, p in zip(group.completions, own, strict=True)]
        )

    batch = one_batch(*map(on_policy, off_policy_groups(weights)), normalizer=100)
    one, other = gradient(plain, batch), gradient(corrected, batch)
    for name in one:
        np.testing.assert_allclose(other[name], one[name], rtol=0, atol=1e-6 * max(1.0, np.abs(one[name]).max()))


def test_the_ratio_of_a_top_p_sampler_is_the_kept_probability_mass(tiny_policy: Path) -> None:
    learner = tiny_learner(tiny_policy, importance="truncate")
    prompt, top_p = (5, 6), 0.8
    policy = arm_probabilities(learner, prompt)
    order = np.argsort(-policy)
    kept = order[: int((policy[order].cumsum() < top_p).sum()) + 1]
    mass = policy[kept].sum()
    assert top_p <= mass < 1
    arms = [completion([int(arm)], [math.log(policy[arm] / mass)]) for arm in kept]
    stats = learner.update(one_batch(given_group(prompt, arms, [1.0] * len(arms))))
    assert stats.importance_ratios is not None
    assert asdict(stats.importance_ratios) == pytest.approx(
        {"mean": mass, "max": mass, "cut": 0.0, "effective_sample_size": 1.0}, rel=1e-4
    )


def test_a_batch_of_masked_tokens_takes_no_step(tiny_policy: Path) -> None:
    learner = tiny_learner(tiny_policy, importance="mask", weight_decay=0.1)
    likely = completion([1], [math.log(arm_probabilities(learner, (5,))[1])])
    assert learner.update(one_batch(given_group((5,), [likely], [1.0]))).optimizer_steps == 1
    before = [p.detach().clone() for p in learner.policy.parameters()]
    unlikely = given_group((5, 6), [completion([1, 2], [-60.0, -60.0])], [1.0])
    stats = learner.update(replace(one_batch(unlikely), step=1))
    assert (stats.optimizer_steps, stats.skipped_steps, stats.loss, stats.grad_norm) == (0, 0, 0.0, 0.0)
    assert stats.importance_ratios is not None
    assert stats.importance_ratios.cut == 1.0
    assert all(torch.equal(a, b) for a, b in zip(before, learner.policy.parameters(), strict=True))


def test_ratio_statistics_come_from_the_first_mini_batch(tiny_policy: Path) -> None:
    groups = [given_group((5,), [completion([arm], [-3.0])], [1.0]) for arm in (3, 3)]
    mini_batches = tuple(MiniBatch((group,), 1) for group in groups)
    both, first = tiny_learner(tiny_policy), tiny_learner(tiny_policy)
    assert (
        both.update(Batch(0, mini_batches)).importance_ratios
        == first.update(Batch(0, mini_batches[:1])).importance_ratios
    )
    second = first.update(Batch(1, mini_batches[1:]))
    assert second.importance_ratios is not None
    before = arm_probabilities(tiny_learner(tiny_policy), (5,))[3] / math.exp(-3.0)
    assert second.importance_ratios.mean > 1.05 * before, "the first step increased this token's probability"
