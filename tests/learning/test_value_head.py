"""A critic's hidden layer and the clipped error of its values, against their definitions."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from marl_ray.config import OptimizerConfig, from_tree
from marl_ray.core.errors import UserError
from marl_ray.learning.critic import Critic, ValueEstimate, last_hidden, value_head
from tests.learning.critic_builders import critic_of, learner_of, some_groups


def test_a_head_with_a_hidden_layer_begins_at_0_and_is_reproducible() -> None:
    heads = [value_head(8, OptimizerConfig(value_head_hidden_dim=5)) for _ in range(2)]
    given = torch.randn(3, 8)
    assert not heads[0](given).any()
    weights = [list(head.parameters()) for head in heads]
    assert [tuple(p.shape) for p in weights[0]] == [(5, 8), (5,), (1, 5), (1,)]
    assert all(torch.equal(one, other) for one, other in zip(*weights, strict=True))


def test_a_hidden_layer_learns_and_is_restored(tiny_policy: Path) -> None:
    # The builder sets random weights in a linear head only.
    def critic() -> Critic:
        learner = learner_of(tiny_policy, "iac", "td")
        own = critic_of(learner)
        settings = OptimizerConfig(value_head_hidden_dim=4)
        return Critic(own._body, False, learner.agent, learner.credit, settings, 10)

    own, groups = critic(), some_groups(6)
    losses = []
    for _ in range(20):
        losses.append(own.backward(own.credit_groups(groups)[1]))
        own.clip()
        own.step()
    assert losses[-1] < losses[0]
    other = critic()
    other.load(own.state())
    values = [[one.value for one in each.credit_groups(groups)[1]] for each in (own, other)]
    assert values[0] == values[1]
    sample = groups[0].critic_sample
    assert sample is not None
    hidden = last_hidden(own._body, [sample.state]).float()
    first, _, last = own.head
    assert last(torch.tanh(first(hidden))).item() == pytest.approx(values[0][0], rel=1e-6)


@pytest.mark.parametrize(
    ("before", "now", "target", "slope"),
    [
        (1.0, 1.05, 3.0, -2 * (3.0 - 1.05)),  # within the range
        (1.0, 1.5, 3.0, 0.0),  # beyond it, on the side of the target: the clipped error is larger and constant
        (1.0, 1.5, 0.0, 2 * 1.5),  # beyond it, away from the target: the own error is larger
    ],
)
def test_values_move_toward_a_target_only_within_the_range(
    before: float, now: float, target: float, slope: float, tiny_policy: Path
) -> None:
    critic = critic_of(learner_of(tiny_policy, "iac", "td", value_clip_range=0.2))
    value = torch.tensor(now, requires_grad=True)
    error = critic._error(ValueEstimate((1,), before, (target,)), value)
    error.sum().backward()
    assert value.grad is not None
    assert float(value.grad) == pytest.approx(slope)
    clipped = before + max(-0.2, min(0.2, now - before))
    assert float(error) == pytest.approx(max((target - now) ** 2, (target - clipped) ** 2))


@pytest.mark.parametrize("key", ["value_clip_range", "value_head_hidden_dim"])
def test_the_settings_need_a_critic(key: str) -> None:
    tree = {"model": {"name": "m"}, "dataset": {"name": "bundled:toy"}, "magrpo": {key: 4}}
    with pytest.raises(UserError, match=f"magrpo.{key} is for critic iac, maac, not none"):
        from_tree(tree, "magrpo")
