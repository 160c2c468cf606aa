"""Losses cispo, sapo and gmpo: values and gradients against their definitions, written per completion and token."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_ray.config import OptimizerConfig
from marl_ray.learning import LOSSES
from marl_ray.learning.losses.policy_loss import LossRatios, LossTokens

Completion = tuple[float, list[tuple[float, float]]]
"""The weight of a completion, and the log-probabilities of its tokens now and before."""
LOW, HIGH = 0.7, 1.5
small = st.floats(-2, 2)
completions = st.lists(
    st.tuples(small, st.lists(st.tuples(small, small), min_size=1, max_size=4)), min_size=1, max_size=3
)


def computed(loss: str, given: list[Completion], **changes: float) -> tuple[float, torch.Tensor, LossRatios]:
    """Return value, gradient in the log-probabilities, and ratios."""
    function = LOSSES.get(loss)(OptimizerConfig(loss=loss, **changes))  # type: ignore[arg-type]
    tokens = [(new, old, weight, n) for n, (weight, own) in enumerate(given) for new, old in own]
    new, old, weights, owners = torch.tensor(tokens, dtype=torch.float64).T
    new = new.clone().requires_grad_()
    total, ratios = function.token_loss(LossTokens(new, old, old, weights, owners.long()))
    assert ratios is not None
    return float(total), torch.autograd.grad(total, new)[0], ratios


def gate(ratio: float, weight: float) -> float:
    tau = 1.0 if weight > 0 else 1.05
    return 4 / tau / (1 + math.exp(-tau * (ratio - 1)))


def sapo(given: list[Completion]) -> float:
    return -sum(weight * gate(math.exp(new - old), weight) for weight, own in given for new, old in own)


def gmpo(given: list[Completion]) -> float:
    total = 0.0
    for weight, own in given:
        ratios = [math.exp(new - old) for new, old in own]
        bounded = [min(r, HIGH) if weight > 0 else max(r, LOW) for r in ratios]
        total -= weight * math.prod(bounded) ** (1 / len(own))
    return total


@pytest.mark.parametrize(
    ("loss", "definition", "changes"),
    [("sapo", sapo, {}), ("gmpo", gmpo, {"clip_low": 1 - LOW, "clip_high": HIGH - 1})],
)
@settings(max_examples=100, deadline=None)
@given(given=completions)
def test_value_and_gradient_follow_the_definition(
    loss: str, definition: Callable[[list[Completion]], float], changes: dict[str, float], given: list[Completion]
) -> None:
    value, gradient, ratios = computed(loss, given, **changes)
    assert value == pytest.approx(definition(given), abs=1e-9)
    places = [(n, t) for n, (_, own) in enumerate(given) for t in range(len(own))]
    for entry, (n, t) in enumerate(places):
        ratio = math.exp(given[n][1][t][0] - given[n][1][t][1])
        if loss == "gmpo" and min(abs(ratio - LOW), abs(ratio - HIGH)) < 1e-3:
            continue  # the definition has a corner here
        assert float(gradient[entry]) == pytest.approx(slope(definition, given, n, t), abs=1e-5)
        assert float(ratios.ratios[entry]) == pytest.approx(ratio)


def slope(definition: Callable[[list[Completion]], float], given: list[Completion], n: int, t: int) -> float:
    """Return the derivative in one log-probability by central differences."""

    def moved(step: float) -> float:
        weight, own = given[n]
        own = [(new + step if i == t else new, old) for i, (new, old) in enumerate(own)]
        return definition([*given[:n], (weight, own), *given[n + 1 :]])

    return (moved(1e-5) - moved(-1e-5)) / 2e-5


@settings(max_examples=100, deadline=None)
@given(given=completions)
def test_cispo_weights_the_policy_gradient_by_clipped_ratios(given: list[Completion]) -> None:
    value, gradient, ratios = computed("cispo", given, clip_high=HIGH - 1)
    tokens = [(new, old, weight) for weight, own in given for new, old in own]
    factors = [min(math.exp(new - old), HIGH) for new, old, _ in tokens]
    expected = [-weight * factor for factor, (_, _, weight) in zip(factors, tokens, strict=True)]
    assert gradient.tolist() == pytest.approx(expected)
    assert value == pytest.approx(sum(e * new for e, (new, _, _) in zip(expected, tokens, strict=True)), abs=1e-9)
    assert not ratios.clipped.any()


def test_before_the_first_step_all_losses_are_the_policy_gradient() -> None:
    given: list[Completion] = [(0.5, [(-1.0, -1.0), (-2.0, -2.0)]), (-1.0, [(-0.5, -0.5)])]
    for loss in ("clip", "cispo", "sapo"):
        assert computed(loss, given)[1].tolist() == pytest.approx([-0.5, -0.5, 1.0])
    for loss in ("gspo", "gmpo"):  # divided by the length of the completion
        assert computed(loss, given)[1].tolist() == pytest.approx([-0.25, -0.25, 1.0])


def test_the_gate_of_sapo_falls_smoothly_and_sooner_for_negative_weights() -> None:
    def slopes(weight: float) -> list[float]:
        return [abs(float(computed("sapo", [(weight, [(step / 4, 0.0)])])[1])) for step in range(8)]

    positive, negative = slopes(1.0), slopes(-1.0)
    assert positive[0] == negative[0] == pytest.approx(1.0)
    assert all(later < earlier for earlier, later in pairwise(positive[3:]))
    assert all(low < high for low, high in zip(negative[1:], positive[1:], strict=True))


def test_gmpo_has_no_lower_bound_with_clip_low_1() -> None:
    value, gradient, _ = computed("gmpo", [(-1.0, [(-9.0, 0.0)])], clip_low=1.0)
    assert value == pytest.approx(math.exp(-9.0))
    assert float(gradient) == pytest.approx(math.exp(-9.0))
