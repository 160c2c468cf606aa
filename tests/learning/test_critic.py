"""Critics against NumPy in float64: values, targets, advantages and gradients; portions, checkpoints and learning."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from marl_ray.config import CreditConfig
from marl_ray.core.batch import CriticSample, Group
from marl_ray.core.episode import Completion, sibling_calls
from marl_ray.learning.critic import explained_variance
from marl_ray.learning.gradient_accumulator import GradientAccumulator
from marl_ray.learning.learner import Learner
from marl_ray.learning.micro_batches import Layout
from tests.learning.builders import tiny_learner
from tests.learning.critic_builders import (
    COEFFICIENT,
    DISCOUNT,
    KINDS,
    LAYOUTS,
    Kind,
    Target,
    batch,
    critic_of,
    learner_of,
    some_groups,
)
from tests.learning.reference_learner import Weights, numpy_logprobs, numpy_value, slopes, weights_of

# Definitions, per group.


def critic_weights(learner: Learner) -> Weights:
    """Return the weights that determine the critic's values."""
    critic = critic_of(learner)
    head = {f"head.{name}": p.detach().double().numpy() for name, p in critic.head.named_parameters()}
    return weights_of(critic._body.model) | head


def targets_of(weights: Weights, group: Group, target: Target) -> np.ndarray:
    assert group.critic_sample is not None
    if target == "mc":
        return np.array(group.returns)
    pairs = zip(group.critic_sample.rewards, group.critic_sample.successors, strict=True)
    return np.array(
        [r + DISCOUNT * (np.mean([numpy_value(weights, s) for s in states]) if states else 0) for r, states in pairs]
    )


def critic_loss(weights: Weights, groups: Sequence[Group], targets: Sequence[np.ndarray]) -> float:
    states = [group.critic_sample.state for group in groups if group.critic_sample is not None]
    return float(np.mean([((y - numpy_value(weights, s)) ** 2).mean() for s, y in zip(states, targets, strict=True)]))


def policy_loss(weights: Weights, groups: Sequence[Group], advantages: Sequence[np.ndarray]) -> float:
    terms = (
        -a / len(group.completions) * numpy_logprobs(weights, group.prompt_ids, c.token_ids).sum()
        for group, of_group in zip(groups, advantages, strict=True)
        for c, a in zip(group.completions, of_group, strict=True)
    )
    return float(sum(terms)) / len(groups)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("target", ["td", "mc"])
@pytest.mark.parametrize("kind", KINDS)
def test_advantages_and_gradients_follow_the_definitions(
    kind: Kind, target: Target, layout: Layout, tiny_policy: Path
) -> None:
    learner, groups = learner_of(tiny_policy, kind, target, layout), some_groups(5, kind=kind)
    critic, policy = critic_of(learner), weights_of(learner.policy)
    values = critic_weights(learner)
    targets = [targets_of(values, group, target) for group in groups]
    advantages = [
        y - numpy_value(values, g.critic_sample.state) for g, y in zip(groups, targets, strict=True) if g.critic_sample
    ]

    credited, estimates = critic.credit_groups(groups)
    for group, one, a in zip(credited, estimates, advantages, strict=True):
        np.testing.assert_allclose(group.weights, a / len(a), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(np.array(one.targets) - one.value, a, rtol=1e-4, atol=1e-5)

    gradient = GradientAccumulator(learner.logprob_model, learner.settings)
    ((rows, estimates),) = learner._prepare([groups])
    gradient.add(rows, len(groups))
    gradient.close(len(groups))
    assert gradient.loss == pytest.approx(policy_loss(policy, groups, advantages), rel=1e-4, abs=1e-5)
    assert critic.backward(estimates) == pytest.approx(critic_loss(values, groups, targets), rel=1e-4)

    def slope_of(name: str, parameters: dict[str, torch.nn.Parameter]) -> dict[str, np.ndarray]:
        return {name + key: p.grad.double().numpy() for key, p in parameters.items() if p.grad is not None}

    head = slope_of("head.", dict(critic.head.named_parameters()))
    if kind == "iac":
        found = slope_of("", dict(learner.policy.named_parameters())) | head

        def loss(weights: Weights) -> float:
            return policy_loss(weights, groups, advantages) + COEFFICIENT * critic_loss(weights, groups, targets)

        pairs = [*slopes(loss, values, found)]
    else:
        of_policy = slope_of("", dict(learner.policy.named_parameters()))
        of_body = slope_of("", dict(critic._body.model.named_parameters())) | head
        used = {name: weight for name, weight in values.items() if name in of_body}
        assert values.keys() - used.keys() == {"lm_head.weight"}, "the only weights without effect on values"
        fixed = {"lm_head.weight": values["lm_head.weight"]}
        pairs = [*slopes(lambda w: policy_loss(w, groups, advantages), policy, of_policy)]
        pairs += slopes(lambda w: COEFFICIENT * critic_loss({**w, **fixed}, groups, targets), used, of_body)
    for said, measured in pairs:
        assert said == pytest.approx(measured, rel=2e-3, abs=2e-4)


@pytest.mark.parametrize("size", [3, 7])
@pytest.mark.parametrize("kind", KINDS)
def test_advantages_are_whitened_per_turn_over_the_whole_batch(kind: Kind, size: int, tiny_policy: Path) -> None:
    # All completions of a turn are compared, whatever the number of optimizer steps.
    learner = learner_of(tiny_policy, kind, "td", whitened=True)
    groups = [replace(group, turn=number % 2) for number, group in enumerate(some_groups(7, kind=kind))]
    values = critic_weights(learner)
    found = [
        targets_of(values, g, "td") - numpy_value(values, g.critic_sample.state)
        for g in groups
        if g.critic_sample is not None
    ]
    expected = []
    for number, own in enumerate(found):
        of_turn = np.concatenate(found[number % 2 :: 2])
        expected += [*((own - of_turn.mean()) / of_turn.std() / len(own))]
    prepared = learner._prepare([part.groups for part in batch(0, groups, size).mini_batches])
    weights = [c.weight for rows, _ in prepared for row in rows for c in row.completions]
    np.testing.assert_allclose(weights, expected, rtol=2e-4, atol=2e-5)
    with pytest.raises(ValueError, match="groups of batch 0 came alone, and the critic needs the whole batch"):
        learner.accumulate(0, 0, groups[:2])
    assert learner.update(batch(0, groups, size)).optimizer_steps == -(-7 // size)


def test_hand_computed_targets(tiny_policy: Path) -> None:
    # With a value of 3 everywhere, td is r + 0.5 * 3 unless the episode ends; mc is the return.
    group = some_groups(1)[0]
    sample = CriticSample((1, 2), (1.0, 2.0), (((3,), (4, 5)), ()))
    two = replace(group, calls=group.calls[:1] * 2, returns=(7.0, 8.0), weights=(0.5, 0.5), critic_sample=sample)
    for target, expected in (("td", (2.5, 2.0)), ("mc", (7.0, 8.0))):
        critic = critic_of(learner_of(tiny_policy, "iac", target))
        torch.nn.init.zeros_(critic.head.weight)
        torch.nn.init.constant_(critic.head.bias, 3.0)
        (credited,), (estimates,) = critic.credit_groups([two])
        assert (estimates.value, estimates.targets) == (3.0, expected)
        assert credited.weights == tuple(0.5 * (y - 3.0) for y in expected)


def test_hand_computed_explained_variance() -> None:
    assert explained_variance([(1.0, 1.0), (3.0, 3.0)]) == 1.0
    assert explained_variance([(1.0, 2.0), (3.0, 2.0)]) == 0.0
    assert explained_variance([(1.0, 3.0), (3.0, 1.0)]) == -3.0
    assert explained_variance([(1.0, 6.0), (3.0, 8.0)]) == 1.0, "a constant error has no variance"
    assert explained_variance([(2.0, 1.0), (2.0, 5.0)]) is None


def state_of(learner: Learner) -> list[torch.Tensor]:
    critic = critic_of(learner)
    moments = [value for one in critic.optimizer.state_dict()["state"].values() for value in one.values()]
    return [*(p.detach() for p in (*learner.policy.parameters(), *critic.parameters)), *moments]


@pytest.mark.parametrize(("kind", "rank"), [("iac", 0), ("maac", 0), ("maac", 2)])
def test_portions_and_checkpoints_are_bit_identical(kind: Kind, rank: int, tiny_policy: Path, tmp_path: Path) -> None:
    if rank:
        pytest.importorskip("peft")
    whole, streamed, resumed = (learner_of(tiny_policy, kind, "td", rank=rank) for _ in range(3))
    batches = [batch(step, some_groups(7, step, kind), 5) for step in range(3)]
    for step, one in enumerate(batches):
        first, last = one.mini_batches
        for start, end in ((0, 1), (1, 3)):
            streamed.accumulate(step, start, first.groups[start:end])
        stats = streamed.finish(replace(one, mini_batches=(replace(first, groups=first.groups[3:]), last)), 3)
        assert stats == whole.update(one)
        assert stats.critic is not None
        assert stats.optimizer_steps == 2
        if step == 1:
            (tmp_path / "agent_0").mkdir()
            whole.save(str(tmp_path / "agent_0"))
    resumed.load(str(tmp_path / "agent_0"), 2)
    resumed.update(batches[2])
    for other in (streamed, resumed):
        assert all(torch.equal(a, b) for a, b in zip(state_of(whole), state_of(other), strict=True))
    learned = [name for name in critic_of(whole).state()["body"] if rank == 0 or "lora" in name]
    assert len(learned) == len(critic_of(whole).parameters) - 2, "with adapters, only adapters and the head"


@pytest.mark.parametrize("kind", KINDS)
def test_a_critic_learns_the_value_of_states(kind: Kind, tiny_policy: Path) -> None:
    # One of two prompts earns 3 more than the other; the value learns the difference, and noise remains.
    learner = tiny_learner(tiny_policy, credit=CreditConfig(critic=kind, critic_target="mc"), critic_learning_rate=2e-2)
    chance = random.Random(5)

    def random_group(prompt: int) -> Group:
        ids = (prompt, 7)
        returns = tuple(3.0 * (prompt == 2) + chance.uniform(-0.1, 0.1) for _ in range(4))
        completions = tuple(Completion((g, 1), "", (-3.0, -3.0), "stop", ((0, 2),)) for g in range(4))
        return Group(
            0,
            sibling_calls(ids, completions),
            returns,
            (0.25,) * 4,
            critic_sample=CriticSample(ids, returns, ((),) * 4),
        )

    first, *_, last = (learner.update(batch(step, [random_group(1), random_group(2)], 2)).critic for step in range(40))
    assert first is not None
    assert last is not None
    assert (first.value, first.explained_variance) == (0.0, 0.0), "the value is zero before training"
    assert last.explained_variance is not None
    assert last.explained_variance > 0.95
    assert last.loss < 0.05 * first.loss
    assert last.value == pytest.approx(1.5, abs=0.3)


@pytest.mark.parametrize("kind", KINDS)
def test_a_non_finite_critic_gradient_changes_no_state(kind: Kind, tiny_policy: Path) -> None:
    learner = learner_of(tiny_policy, kind, "td")
    before = [part.clone() for part in state_of(learner)]
    hook = critic_of(learner).head.weight.register_hook(lambda gradient: gradient * float("inf"))
    stats = learner.update(batch(0, some_groups(2, 0, kind), 2))
    assert (stats.optimizer_steps, stats.skipped_steps) == (0, 1)
    assert all(torch.equal(a, b) for a, b in zip(before, state_of(learner), strict=True))
    hook.remove()
    assert learner.update(batch(1, some_groups(2, 1, kind), 2)).optimizer_steps == 1


def test_a_critic_needs_critic_samples(tiny_policy: Path) -> None:
    learner = learner_of(tiny_policy, "iac", "td")
    with pytest.raises(ValueError, match="needs groups with a critic sample"):
        learner.update(batch(0, [replace(some_groups(1)[0], critic_sample=None)], 1))
