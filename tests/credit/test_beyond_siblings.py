"""Estimators with extra samples or a whole batch, against an independent NumPy computation and hand-computed cases."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_ray.config import Config, from_tree
from marl_ray.core.batch import Group
from marl_ray.core.episode import Episode, GreedySample, Node
from marl_ray.core.errors import UserError
from marl_ray.credit.groups import build_group, weight_group
from marl_ray.credit.returns import median_index
from marl_ray.trainer.batch_builder import BatchBuilder
from tests.credit.trees import advantages_of, completion, episode, node, random_tree, tree_config
from tests.credit.whole_batches import build_agent_batch

REWARDS = (0.0, 0.4, 1.1, 3.5, 4.0)
WEIGHTS = [1.5, 1.0, 0.25]


def with_baselines(root: Node, agents: int, rng: random.Random) -> Node:
    """Return the tree with a random greedy sample and random counterfactual rewards at every node."""
    for _, one in episode(root).nodes():
        own = tuple(rng.choice(REWARDS) + agent for agent in range(agents))
        one.greedy = GreedySample((completion(1),) * agents, own[0], own)
        one.counterfactuals = {
            agent: [rng.choice(REWARDS) + agent for _ in one.joint_actions] for agent in range(agents)
        }
    return root


def oracle(episodes: list[Episode], agent: int, group: int, mode: str, run: Config) -> list[np.ndarray]:
    """Return the weights of every node's group, by turn, then by episode, computed from the definitions."""
    nodes = sorted((one for e in episodes for _, one in e.nodes()), key=lambda one: one.turn)

    def credited(one: Node, values: list[float]) -> np.ndarray:
        held = [
            [v for v, a in zip(values, one.joint_actions, strict=True) if a.indices[agent] == g] for g in range(group)
        ]
        return np.array([np.mean(of_one) for of_one in held])

    returns = [credited(one, [action.rewards[agent] for action in one.joint_actions]) for one in nodes]
    found = []
    for one, own in zip(nodes, returns, strict=True):
        estimator = run.agents[agent].estimator
        if estimator == "remax":
            assert one.greedy is not None
            advantage = own - one.greedy.rewards[agent]
        elif estimator == "difference":
            advantage = own - credited(one, one.counterfactuals[agent])
        else:
            turn = np.concatenate([r for other, r in zip(nodes, returns, strict=True) if other.turn == one.turn])
            advantage = (own - turn.mean()) / (turn.std() + 1e-6) if np.ptp(turn) else own * 0.0
        found.append(run.training.turn_gradient_weights[one.turn] / group * advantage)
    return found


@settings(max_examples=120, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    depth=st.integers(1, 3),
    agents=st.integers(1, 3),
    group=st.integers(1, 3),
    mode=st.sampled_from(["aligned", "cross"]),
    estimator=st.sampled_from(["remax", "difference", "reinforce_pp"]),
    size=st.sampled_from([None, 1, 2]),
)
def test_weights_equal_the_numpy_computation(
    seed: int, depth: int, agents: int, group: int, mode: str, estimator: str, size: int | None
) -> None:
    settings = {"joint_mode": mode, "estimator": estimator, "turn_gradient_weights": WEIGHTS[:depth]}
    run = tree_config(agents, depth, group, train_batch_size=size, **settings)
    rng = random.Random(seed)
    trees = [with_baselines(random_tree(depth, group, agents, mode, "random", rng), agents, rng) for _ in range(3)]
    episodes = [episode(tree) for tree in trees]
    builder = BatchBuilder(0, 3, run)
    for draw in (2, 0, 1):
        builder.add_episode(draw, episodes[draw])
    for agent in range(agents):
        batch = build_agent_batch(episodes, agent, 0, run)
        assert builder.batches[agent] == batch, "the order of arrival makes no difference"
        groups = [g for part in batch.mini_batches for g in part.groups]
        groups.sort(key=lambda g: g.turn)  # mini-batches are ordered by episode
        for got, expected in zip(groups, oracle(episodes, agent, group, mode, run), strict=True):
            np.testing.assert_allclose(got.weights, expected, rtol=1e-9, atol=1e-9)


@settings(max_examples=100, deadline=None)
@given(
    returns=st.lists(st.sampled_from(REWARDS), min_size=2, max_size=6),
    baseline=st.sampled_from(REWARDS),
    shift=st.sampled_from([-4.0, 0.0, 2.5]),
    scale=st.sampled_from([0.5, 1.0, 4.0]),
)
def test_advantages_under_shifted_and_scaled_rewards(
    returns: list[float], baseline: float, shift: float, scale: float
) -> None:
    # Advantages ignore a shift of all rewards; they scale with the rewards, or ignore the scale if whitened.
    given = torch.tensor(returns, dtype=torch.float64)
    other = torch.full_like(given, baseline)
    for name in ("remax", "difference"):
        moved = advantages_of(name, scale * given + shift, scale * other + shift)
        torch.testing.assert_close(moved, scale * advantages_of(name, given, other))
    white = advantages_of("reinforce_pp", scale * given + shift)
    torch.testing.assert_close(white, advantages_of("reinforce_pp", given), rtol=1e-4, atol=1e-5)


def test_hand_computed_advantages() -> None:
    returns, baseline = torch.tensor([4.0, 1.0]), torch.tensor([3.0, 0.5])
    assert advantages_of("remax", returns, baseline[:1]).tolist() == [1.0, -2.0]
    assert advantages_of("difference", returns, baseline).tolist() == [1.0, 0.5]
    batch = torch.tensor([0.0, 0.0, 4.0, 4.0], dtype=torch.float64)  # mean 2, deviation 2
    assert advantages_of("reinforce_pp", batch).tolist() == pytest.approx([-1.0, -1.0, 1.0, 1.0], rel=1e-6)


@pytest.mark.parametrize(
    ("returns", "which"), [([3.0], 0), ([3.0, 1.0], 1), ([5.0, 1.0, 3.0], 2), ([1.0, 1.0, 1.0], 0), ([4, 1, 3, 2], 3)]
)
def test_median_index(returns: list[float], which: int) -> None:
    assert median_index(returns) == which


def test_a_difference_reward_ignores_what_other_agents_earn() -> None:
    # The siblings' joint rewards differ only through the other agent, so the counterfactual baseline equals the reward.
    one = node(0, 2, 2, "aligned", [[4.0, 4.0], [0.4, 0.4]])
    one.counterfactuals = {0: [4.0, 0.4], 1: [0.4, 0.4]}
    run = tree_config(2, 1, 2, estimator="difference")
    assert build_group(one, 0, run).weights == (0.0, 0.0)
    assert build_group(one, 1, run).weights == (1.8, 0.0)


def test_cross_mode_rounds_baselines_and_returns_alike() -> None:
    # In floating point 3 * 0.1 / 3 is not 0.1; equal rewards give zero weights all the same.
    one = node(0, 3, 2, "cross", [[0.1, 0.1]] * 9)
    one.greedy = GreedySample((completion(1),) * 2, 0.1, (0.1, 0.1))
    assert build_group(one, 0, tree_config(2, 1, 3, joint_mode="cross", estimator="remax")).weights == (0.0, 0.0, 0.0)


def test_a_whole_batch_estimator_releases_no_group_early() -> None:
    run = tree_config(2, 1, 2, estimator="reinforce_pp")
    builder = BatchBuilder(0, 2, run)
    rewards: list[list[list[float]]] = [[[0.0] * 2] * 2, [[4.0] * 2] * 2]
    found: list[int] = []
    for draw, of_draw in enumerate(rewards):
        builder.add_episode(draw, episode(node(0, 2, 2, "aligned", of_draw)))
        found.append(len(builder.groups[0]))
    assert found == [0, 2]
    hard, easy = builder.groups[0]
    assert hard.weights == pytest.approx((-0.5, -0.5), rel=1e-6)
    assert easy.weights == pytest.approx((0.5, 0.5), rel=1e-6)


def test_agents_may_have_different_estimators() -> None:
    # One agent's groups are available at once; the other agent's groups wait for the whole batch.
    tree = {
        "agents": [{"name": "m"}, {"name": "m", "estimator": "reinforce_pp"}],
        "dataset": {"name": "bundled:toy"},
        "magrpo": {"num_generations": 2},
    }
    builder = BatchBuilder(0, 2, from_tree(tree, "magrpo"))
    builder.add_node(0, node(0, 2, 2, "aligned", [[1.0] * 2, [0.0] * 2]))
    assert [len(groups) for groups in builder.groups] == [1, 0]


@pytest.mark.parametrize(
    ("section", "says"),
    [
        ({"estimator": "remax", "handoff": "all", "num_turns": 2}, "a joint action that is not continued"),
        ({"estimator": "remax", "normalize_advantages": True}, "makes remax the same as magrpo"),
        ({"estimator": "reinforce_pp", "normalize_advantages": True}, "makes reinforce_pp the same as magrpo"),
        ({"estimator": "reinforce_pp", "reference_kl_coef": 0.1}, "set it to k3_in_loss"),
        ({"counterfactual": "median"}, "is for estimator difference, centred_difference, not magrpo"),
        ({"estimator": "difference", "counterfactual": "median", "num_generations": 1}, "set it to 2 or more"),
    ],
)
def test_incompatible_settings_are_rejected(section: dict[str, object], says: str) -> None:
    given = {"num_generations": 2} | section
    with pytest.raises(UserError, match=says):
        tree_config(2, int(given.pop("num_turns", 1)), int(given.pop("num_generations")), **given)  # type: ignore[call-overload]


def test_a_group_stores_its_baselines() -> None:
    # A learner that subtracts a KL term from the returns applies the estimator a second time.
    one = node(0, 2, 1, "aligned", [[4.0], [1.0]])
    one.greedy = GreedySample((completion(1),), 3.0, (3.0,))
    run = tree_config(1, 1, 2, estimator="remax")
    group = build_group(one, 0, run)
    assert group == Group(0, tuple(one.calls[0]), (4.0, 1.0), (0.5, -1.0), {"greedy_rewards": (3.0, 3.0)})
    assert weight_group(replace(group, returns=(3.5, 1.0)), run.agents[0], run.training).weights == (0.25, -1.0)
