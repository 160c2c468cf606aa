"""Estimators opo, maxrl, pass_at_k and gdpo against independent NumPy computations, from episodes to loss weights."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_ray.core.episode import Node, Outcome
from marl_ray.core.errors import UserError
from marl_ray.credit import ESTIMATORS
from marl_ray.credit.groups import build_group
from marl_ray.credit.requirements import requires
from marl_ray.testing import check_estimator
from tests.credit.trees import advantages_of, episode, node, random_tree, tree_config
from tests.credit.whole_batches import build_agent_batch

returns_lists = st.lists(st.sampled_from([0.0, 0.4, 1.1, 3.5, 4.0]), min_size=2, max_size=6)


def test_the_estimators_conform() -> None:
    check_estimator(ESTIMATORS.get("maxrl"))
    check_estimator(ESTIMATORS.get("pass_at_k"))

    @requires(lengths=True)
    def opo(returns: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        return advantages_of("opo", returns, lengths)

    check_estimator(opo)


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 10**6), agents=st.integers(1, 3), mode=st.sampled_from(["aligned", "cross"]))
def test_opo_weighs_the_baseline_by_length(seed: int, agents: int, mode: str) -> None:
    tree = random_tree(1, 3, agents, mode, "random", random.Random(seed))
    run = tree_config(agents, 1, 3, joint_mode=mode, estimator="opo")
    for agent in range(agents):
        group = build_group(tree, agent, run)
        lengths = [len(completion.token_ids) for completion in group.completions]
        assert len(set(lengths)) > 1
        baseline = np.average(group.returns, weights=lengths)
        np.testing.assert_allclose(group.weights, (np.array(group.returns) - baseline) / 3, atol=1e-12)


def test_opo_makes_the_weighted_second_moment_smallest() -> None:
    returns, lengths = np.array([0.0, 1.0, 4.0]), np.array([10.0, 2.0, 30.0])
    found = advantages_of("opo", torch.tensor(returns), torch.tensor(lengths)).numpy()
    own = float(returns[0] - found[0])
    moments = [(lengths * (returns - own - shift) ** 2).sum() for shift in (-0.1, 0.0, 0.1)]
    assert moments[1] == min(moments)


@settings(max_examples=100, deadline=None)
@given(returns=returns_lists)
def test_maxrl_divides_by_the_mean(returns: list[float]) -> None:
    found = advantages_of("maxrl", torch.tensor(returns, dtype=torch.float64)).tolist()
    mean = np.mean(returns)
    assert found == pytest.approx([(value - mean) / mean if mean > 0 else 0.0 for value in returns])


@pytest.mark.parametrize("size", [2, 4])
def test_maxrl_is_the_truncated_gradient_of_the_log_probability(size: int) -> None:
    # With one parameter, the probability p of success, the score of a success is 1 / p and of a failure -1 / (1 - p).
    p, expected = 0.3, 0.0
    for outcomes in itertools.product([0.0, 1.0], repeat=size):
        chance = np.prod([p if success else 1 - p for success in outcomes])
        scores = [1 / p if success else -1 / (1 - p) for success in outcomes]
        advantages = advantages_of("maxrl", torch.tensor(outcomes, dtype=torch.float64)).tolist()
        expected += chance * np.mean([a * s for a, s in zip(advantages, scores, strict=True)])
    terms = range(1, size)  # subtracting the mean removes the last of the G terms
    assert expected == pytest.approx(sum((1 - p) ** (k - 1) for k in terms))


@settings(max_examples=100, deadline=None)
@given(returns=returns_lists)
def test_pass_at_k_is_the_gain_of_the_maximum(returns: list[float]) -> None:
    found = advantages_of("pass_at_k", torch.tensor(returns, dtype=torch.float64)).tolist()
    others = [max(returns[:index] + returns[index + 1 :]) for index in range(len(returns))]
    assert found == pytest.approx([max(returns) - other for other in others])


def with_levels(root: Node, agents: int, rng: random.Random) -> Node:
    """Return the tree with rewards made of two levels, and a part of its own for every agent."""
    for _, one in episode(root).nodes():
        for index, action in enumerate(one.joint_actions):
            levels = {"tests": rng.choice([0.0, 3.0]), "style": rng.choice([0.0, 0.5, 1.0])}
            reward = sum(levels.values())
            rewards = tuple(reward + rng.choice([0.0, agent]) for agent in range(agents))
            outcome = Outcome(reward, levels, rewards=rewards)
            one.joint_actions[index] = replace(action, outcome=outcome, reward=reward, rewards=rewards)
    return root


def normalized(values: np.ndarray) -> np.ndarray:
    return (values - values.mean()) / (values.std() + 1e-6)


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 10**6), agents=st.integers(1, 3), depth=st.integers(1, 2))
def test_gdpo_normalizes_each_level_apart(seed: int, agents: int, depth: int) -> None:
    rng = random.Random(seed)
    trees = [with_levels(random_tree(depth, 3, agents, "aligned", "random", rng), agents, rng) for _ in range(3)]
    run = tree_config(agents, depth, 3, estimator="gdpo")
    for agent in range(agents):
        batch = build_agent_batch([episode(tree) for tree in trees], agent, 0, run)
        groups = [group for part in batch.mini_batches for group in part.groups]
        nodes = [one for turn in range(depth) for tree in trees for _, one in episode(tree).nodes() if one.turn == turn]
        sums = []
        for one in nodes:
            levels = [[action.outcome.levels[name] for action in one.joint_actions] for name in ("tests", "style")]
            own = [action.rewards[agent] - action.reward for action in one.joint_actions]
            sums.append(sum(normalized(np.array(values)) for values in (*levels, own)))
        for group, one, own_sum in zip(groups, nodes, sums, strict=True):
            turn = np.concatenate([s for s, other in zip(sums, nodes, strict=True) if other.turn == one.turn])
            expected = own_sum / (np.sqrt((turn**2).mean()) + 1e-6) / 3
            np.testing.assert_allclose(group.weights, expected, atol=1e-9)


def test_gdpo_tells_apart_levels_with_the_same_sum() -> None:
    # All siblings earn 1: three siblings have level a and one has level b.
    one = node(0, 4, 1, "aligned", [[1.0]] * 4)
    for index, action in enumerate(one.joint_actions):
        levels = {"a": float(index < 3), "b": float(index == 3)}
        one.joint_actions[index] = replace(action, outcome=Outcome(1.0, levels))
    assert build_group(one, 0, tree_config(1, 1, 4)).weights == (0.0,) * 4
    (mini_batch,) = build_agent_batch([episode(one)], 0, 0, tree_config(1, 1, 4, estimator="gdpo")).mini_batches
    assert mini_batch.groups[0].weights == pytest.approx((0.0,) * 4, abs=1e-12), "a loses what b gains"
    one.joint_actions[0] = replace(one.joint_actions[0], outcome=Outcome(1.0, {"a": 1.0, "b": 0.0}), rewards=(0.5,))
    (mini_batch,) = build_agent_batch([episode(one)], 0, 0, tree_config(1, 1, 4, estimator="gdpo")).mini_batches
    assert mini_batch.groups[0].weights[0] < 0, "the agent's own part of the reward is a level"


def test_equal_levels_have_no_gradient() -> None:
    one = node(0, 3, 1, "aligned", [[0.3]] * 3)
    for index, action in enumerate(one.joint_actions):
        one.joint_actions[index] = replace(action, outcome=Outcome(0.3, {"a": 0.1, "b": 0.2}))
    (mini_batch,) = build_agent_batch([episode(one)], 0, 0, tree_config(1, 1, 3, estimator="gdpo")).mini_batches
    assert mini_batch.groups[0].weights == (0.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("section", "says"),
    [
        ({"estimator": "opo", "normalize_advantages": True}, "makes opo the same as magrpo"),
        ({"estimator": "maxrl", "normalize_advantages": True}, "makes maxrl the same as magrpo"),
        ({"estimator": "pass_at_k", "normalize_advantages": True}, "would replace the scale that pass_at_k gives"),
        ({"estimator": "gdpo", "normalize_advantages": True}, "would replace the scale that gdpo gives"),
        ({"estimator": "gdpo", "reference_kl_coef": 0.1}, "set it to k3_in_loss"),
        ({"estimator": "gdpo", "dynamic_sampling": True}, "learns from groups of equal returns too"),
    ],
)
def test_incompatible_settings_are_rejected(section: dict[str, object], says: str) -> None:
    with pytest.raises(UserError, match=says):
        tree_config(2, 1, 2, **section)
