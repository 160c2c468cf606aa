"""Joint preferences: pairs, weights against the gradient of the loss, and the settings of estimator madpo."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from marl_ray.core.episode import Node
from marl_ray.core.errors import UserError
from marl_ray.core.preference import JointPreference, preferences_by_return
from marl_ray.credit.groups import build_group
from marl_ray.credit.preferences import joint_logprobs, preference_slope, preference_weights
from tests.credit.trees import episode, node, random_tree, tree_config
from tests.credit.whole_batches import build_agent_batch
from tests.factories import make_config

BETA = 0.3


def with_logprobs(root: Node, rng: random.Random) -> Node:
    """Return the tree with random log-probabilities of the sampled tokens."""
    for _, one in episode(root).nodes():
        for calls in one.calls:
            for place, call in enumerate(calls):
                logprobs = tuple(rng.uniform(-3, 0) for _ in call.completion.token_ids)
                calls[place] = replace(call, completion=replace(call.completion, logprobs=logprobs))
    return root


def test_pairs_are_ordered_by_the_difference_of_returns() -> None:
    assert preferences_by_return([1.0, 4.0, 2.0, 1.0], None) == [
        JointPreference(1, 0, 3.0),
        JointPreference(1, 3, 3.0),
        JointPreference(1, 2, 2.0),
        JointPreference(2, 0, 1.0),
        JointPreference(2, 3, 1.0),
    ]
    assert preferences_by_return([2.0, 2.0], None) == []


def test_rounding_does_not_choose_between_equal_differences() -> None:
    assert 0.3 - 0.2 != 0.2 - 0.1
    (pair,) = preferences_by_return([0.1, 0.2, 0.3, 0.2], 1)
    assert (pair.chosen, pair.rejected) == (2, 0)
    assert preferences_by_return([0.1 + 0.2, 0.3], None) == []
    order = [(pair.chosen, pair.rejected) for pair in preferences_by_return([0.1, 0.2, 0.3], None)]
    assert order == [(2, 0), (1, 0), (2, 1)]


@pytest.mark.parametrize("difference", [-2e4, -3.0, 0.0, 0.5, 2e4])
def test_the_slope_is_the_derivative_of_the_loss(difference: float) -> None:
    argument = torch.tensor(difference, dtype=torch.float64, requires_grad=True)
    (-torch.nn.functional.logsigmoid(BETA * argument)).backward()
    assert argument.grad is not None
    assert preference_slope(difference, BETA) == pytest.approx(-float(argument.grad), rel=1e-12)


@settings(max_examples=100, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    agents=st.integers(1, 3),
    mode=st.sampled_from(["aligned", "cross"]),
    count=st.sampled_from([1, 3, None]),
    depth=st.integers(1, 2),
    handoff=st.sampled_from(["random", "all"]),
)
@example(seed=2, agents=3, mode="cross", count=3, depth=2, handoff="all")
@example(seed=0, agents=3, mode="cross", count=None, depth=2, handoff="all")
def test_weights_are_the_gradient_of_the_joint_factorised_loss(
    seed: int, agents: int, mode: str, count: int | None, depth: int, handoff: str
) -> None:
    rng = random.Random(seed)
    root = with_logprobs(random_tree(depth, 3, agents, mode, handoff, rng), rng)
    run = tree_config(
        *(agents, depth, 3),
        joint_mode=mode,
        handoff=handoff,
        estimator="madpo",
        preference_pairs=count,
        preference_beta=BETA,
    )
    for agent in range(agents):
        batch = build_agent_batch([episode(root)], agent, 0, run)
        groups = iter(sorted((g for part in batch.mini_batches for g in part.groups), key=lambda g: g.turn))
        for one in sorted((one for _, one in episode(root).nodes()), key=lambda one: one.turn):
            own = torch.tensor([sum(call.completion.logprobs) for call in one.calls[agent]], dtype=torch.float64)
            own.requires_grad_()
            others = [
                sum(sum(one.calls[j][i].completion.logprobs) for j, i in enumerate(action.indices) if j != agent)
                for action in one.joint_actions
            ]
            logprobs = [own[a.indices[agent]] + rest for a, rest in zip(one.joint_actions, others, strict=True)]
            returns = [returned(one, index, agent, handoff) for index in range(len(one.joint_actions))]
            pairs = [
                (-difference, w, r)
                for w in range(len(returns))
                for r in range(len(returns))
                if (difference := round(returns[w] - returns[r], 6)) > 0
            ]
            chosen = sorted(pairs, key=lambda pair: pair[0])[:count]
            weights = next(groups).weights
            if not chosen:
                assert weights == (0.0,) * 3
                continue
            losses = [-torch.nn.functional.logsigmoid(BETA * (logprobs[w] - logprobs[r])) for _, w, r in chosen]
            torch.stack(losses).mean().backward()
            assert own.grad is not None
            np.testing.assert_allclose(weights, -own.grad.numpy(), atol=1e-12)


def returned(one: Node, index: int, agent: int, handoff: str) -> float:
    reward = one.joint_actions[index].rewards[agent]
    if handoff != "all" or index not in one.children:
        return reward
    child = one.children[index]
    return reward + float(np.mean([returned(child, i, agent, handoff) for i in range(len(child.joint_actions))]))


def test_a_partner_that_already_prefers_the_chosen_action_lowers_the_weight() -> None:
    one = node(0, 2, 2, "aligned", [[1.0, 1.0], [0.0, 0.0]])
    run = tree_config(2, 1, 2, estimator="madpo", preference_beta=1.0)
    assert build_group(one, 0, run).weights == pytest.approx(
        [preference_slope(2 * (-0.5 + 1.0), 1.0), -preference_slope(2 * (-0.5 + 1.0), 1.0)]
    )


def test_groups_without_a_preference_have_no_gradient() -> None:
    one = node(0, 3, 1, "aligned", [[1.0]] * 3)
    assert build_group(one, 0, tree_config(1, 1, 3, estimator="madpo")).weights == (0.0, 0.0, 0.0)


def test_agents_may_have_different_betas() -> None:
    one = node(0, 2, 2, "aligned", [[1.0, 1.0], [0.0, 0.0]])
    for calls in one.calls:
        calls[1] = replace(calls[1], completion=calls[0].completion)
    sections = {"agents": [{"name": "m", "preference_beta": 0.5}, {"name": "m", "preference_beta": 2.0}]}
    config = make_config(sections=sections, num_agents=2, num_generations=2, estimator="madpo")
    assert [build_group(one, agent, config).weights for agent in range(2)] == [(0.25, -0.25), (1.0, -1.0)]


@pytest.mark.parametrize(
    ("section", "says"),
    [
        ({"estimator": "madpo", "normalize_advantages": True}, "would replace the scale that madpo gives"),
        ({"estimator": "madpo", "reference_kl_coef": 0.1}, "set it to k3_in_loss"),
        ({"preference_pairs": 3}, "is for estimator madpo, not magrpo"),
    ],
)
def test_incompatible_settings_are_rejected(section: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        tree_config(2, 1, 2, **section)


def test_the_slope_of_a_long_answer_does_not_overflow() -> None:
    assert preference_slope(1e6, 1.0) == 0.0
    assert preference_slope(-1e6, 1.0) == 1.0
    assert math.isfinite(preference_slope(-1e306, 1.0))


def test_an_overlong_penalty_decides_between_equal_rewards() -> None:
    one = node(0, 2, 1, "aligned", [[1.0]] * 2)
    cut = one.calls[0][1]
    one.calls[0][1] = replace(cut, completion=replace(cut.completion, finish_reason="length"))
    run = tree_config(1, 1, 2, estimator="madpo", overlong="penalty", overlong_penalty=0.5)
    chosen, rejected = build_group(one, 0, run).weights
    assert chosen > 0 > rejected


def test_a_pair_with_a_completion_of_another_branch_trains_neither_side() -> None:
    one = with_logprobs(node(0, 3, 1, "aligned", [[2.0], [1.0], [0.0]]), random.Random(0))
    one.calls[0][2] = replace(one.calls[0][2], branch=1, sibling=None)
    pairs = [JointPreference(0, 1, 1.0), JointPreference(0, 2, 2.0), JointPreference(2, 1, 1.0)]
    weights = preference_weights(one, 0, pairs, joint_logprobs(one), BETA)
    assert weights == preference_weights(one, 0, pairs[:1], joint_logprobs(one), BETA)
    assert weights[0] == -weights[1] > 0
