"""The entropy bonus: its gradient, its weight in the loss, and its effect on a policy without any other gradient."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from marl_ray.config import CreditConfig
from marl_ray.core.batch import Group, UpdateStats
from marl_ray.core.episode import Completion
from marl_ray.learning.logprobs import NO_TOKEN, token_logprobs_and_entropies
from tests.learning.builders import build_batch, of_agent, tiny_learner, unweighted_group

COEFFICIENT = 0.25


def groups(returns: tuple[float, float]) -> list[Group]:
    """Return two groups of two completions with the same returns."""
    completions = tuple(
        Completion(tokens, "", (-2.0,) * len(tokens), "stop", ((0, len(tokens)),)) for tokens in ((3, 4, 5), (6,))
    )
    return [unweighted_group(0, prompt, completions, returns) for prompt in ((1, 2), (2, 3, 4))]


def first_update(folder: Path, returns: tuple[float, float], entropy_coef: float, **settings: float) -> UpdateStats:
    learner = tiny_learner(folder, entropy_coef=entropy_coef, **settings)
    return learner.update(build_batch(groups(returns), 2))


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_the_gradient_of_the_entropy_equals_finite_differences(temperature: float) -> None:
    logits = torch.randn(5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    tokens = torch.tensor([0, 2, NO_TOKEN, 1, 2])
    weights = torch.tensor([1.0, -2.0, 0.0, 0.5, 3.0], dtype=torch.float64)

    def both(x: torch.Tensor) -> torch.Tensor:
        logprobs, entropies = token_logprobs_and_entropies(x, tokens, temperature, entropy_gradient=True)
        return logprobs + weights * entropies

    assert torch.autograd.gradcheck(both, (logits,))


def test_an_impossible_token_has_no_gradient() -> None:
    logits = torch.tensor([[0.0, 1.0, -torch.inf]], requires_grad=True)
    _, entropies = token_logprobs_and_entropies(logits, torch.tensor([0]), 1.0, entropy_gradient=True)
    entropies.sum().backward()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()
    assert logits.grad[0, 2] == 0


def test_the_bonus_is_the_entropy_weighted_like_the_loss(tiny_policy: Path) -> None:
    # Two groups of two completions with 3 and 1 tokens: the bonus is the mean over groups of (sum of entropies) / 2.
    plain, with_bonus = (first_update(tiny_policy, (1.0, 0.0), coef) for coef in (0.0, COEFFICIENT))
    assert plain.entropy == with_bonus.entropy
    assert plain.entropy is not None
    entropies = plain.entropy * 4 / 2  # the sum over a group's four tokens, divided by G; mean over both groups
    assert plain.loss - with_bonus.loss == pytest.approx(COEFFICIENT * entropies, rel=1e-5)


def test_equal_returns_leave_the_bonus_alone_and_entropy_rises(tiny_policy: Path) -> None:
    learner = tiny_learner(tiny_policy, entropy_coef=COEFFICIENT, learning_rate=1e-3)
    found = [learner.update(replace(build_batch(groups((1.0, 1.0)), 2), step=step)) for step in range(3)]
    entropies = [stats.entropy for stats in found if stats.entropy is not None]
    assert entropies == sorted(entropies)
    assert len(set(entropies)) == 3
    assert first_update(tiny_policy, (1.0, 1.0), 0.0).optimizer_steps == 0


def test_the_bonus_is_added_beside_a_reference_policy(tiny_policy: Path) -> None:
    settings = {"kl": 0.1, "credit": CreditConfig()}
    plain, with_bonus = (first_update(tiny_policy, (1.0, 0.0), coef, **settings) for coef in (0.0, COEFFICIENT))  # type: ignore[arg-type]
    assert plain.entropy is not None
    assert plain.loss - with_bonus.loss == pytest.approx(COEFFICIENT * plain.entropy * 2, rel=1e-5)


def test_a_constant_factor_divides_by_the_length_of_the_groups_own_agent(tiny_policy: Path) -> None:
    credit = CreditConfig(loss_aggregation="constant")
    batch = build_batch(groups((1.0, 0.0)), 2)
    (mini_batch,) = batch.mini_batches
    of_second = tuple(of_agent(group, 1) for group in mini_batch.groups)
    batch = replace(batch, mini_batches=(replace(mini_batch, groups=of_second),))
    bonuses = []
    for limits in ({0: 10, 1: 10}, {0: 10, 1: 40}):
        losses = []
        for coefficient in (0.0, COEFFICIENT):
            learner = tiny_learner(tiny_policy, entropy_coef=coefficient, credit=credit)
            learner.max_new_tokens = limits
            losses.append(learner.update(batch).loss)
        bonuses.append(losses[0] - losses[1])
    assert bonuses[0] == pytest.approx(4 * bonuses[1], rel=1e-3)
