"""Hand-computed returns on trees."""

from __future__ import annotations

import pytest

from marl_ray.core.episode import Node
from marl_ray.credit.returns import action_returns, completion_returns
from tests.credit.trees import node


def aligned(turn: int, *rewards: float) -> Node:
    return node(turn, len(rewards), 2, "aligned", [[r, r] for r in rewards])


def test_a_leaf_returns_its_reward() -> None:
    assert action_returns(aligned(0, 1.0, 3.0), 0, 0.5, full_tree=True) == [1.0, 3.0]


def test_a_full_tree_adds_the_discounted_mean_of_the_children() -> None:
    root = aligned(0, 1.0, 2.0)
    root.children = {0: aligned(1, 4.0, 0.0), 1: aligned(1, 1.0, 2.0)}
    assert action_returns(root, 0, 0.5, full_tree=True) == [1.0 + 0.5 * 2.0, 2.0 + 0.5 * 1.5]
    root.children[0].children = {0: aligned(2, 8.0, 8.0), 1: aligned(2, 0.0, 4.0)}
    # The child's returns: 4 + 0.5 * 8 = 8 and 0 + 0.5 * 2 = 1.
    assert action_returns(root, 1, 0.5, full_tree=True) == [1.0 + 0.5 * 4.5, 2.0 + 0.5 * 1.5]


def test_a_chain_ranks_siblings_by_their_own_rewards() -> None:
    root = aligned(0, 1.0, 2.0)
    root.children = {1: aligned(1, 4.0, 4.0)}
    assert action_returns(root, 0, 1.0, full_tree=False) == [1.0, 2.0]


def test_a_lost_branch_limits_returns_to_rewards() -> None:
    root = aligned(0, 1.0, 2.0)
    root.children, root.transitions = {1: aligned(1, 4.0, 4.0)}, {0: {}, 1: {}}
    assert action_returns(root, 0, 1.0, full_tree=True) == [1.0, 2.0]


def test_a_branch_lost_further_down_limits_returns_of_all_ancestors() -> None:
    # Both branches are equally good, but a grandchild of one was lost, which must not make that branch look worse.
    root = aligned(0, 1.0, 1.0)
    root.children = {g: aligned(1, 4.0, 4.0) for g in (0, 1)}
    root.transitions = {0: {}, 1: {}}
    for child in root.children.values():
        child.children, child.transitions = {g: aligned(2, 4.0, 4.0) for g in (0, 1)}, {0: {}, 1: {}}
    assert action_returns(root, 0, 1.0, full_tree=True) == [9.0, 9.0]
    del root.children[0].children[1]
    assert action_returns(root, 0, 1.0, full_tree=True) == [1.0, 1.0]
    assert action_returns(root.children[0], 0, 1.0, full_tree=True) == [4.0, 4.0]
    assert action_returns(root.children[1], 0, 1.0, full_tree=True) == [8.0, 8.0]


def test_an_episode_that_ends_early_is_not_a_lost_branch() -> None:
    root = aligned(0, 1.0, 1.0)
    root.children, root.transitions = {g: aligned(1, 4.0, 4.0) for g in (0, 1)}, {0: {}, 1: {}}
    assert action_returns(root, 0, 0.5, full_tree=True) == [3.0, 3.0]


def test_a_group_of_one_in_a_chain_returns_its_reward() -> None:
    root = aligned(0, 1.0)
    root.children = {0: aligned(1, 4.0)}
    assert action_returns(root, 0, 1.0, full_tree=False) == [1.0]
    assert action_returns(root, 0, 1.0, full_tree=True) == [5.0]


def test_cross_mode_averages_over_the_joint_actions_of_a_completion() -> None:
    # Joint actions in order (0, 0), (0, 1), (1, 0), (1, 1).
    crossed = node(0, 2, 2, "cross", [[0.0, 10.0], [4.0, 20.0], [1.0, 30.0], [1.0, 60.0]])
    returns = [action_returns(crossed, agent, 1.0, full_tree=True) for agent in (0, 1)]
    assert completion_returns(crossed, 0, returns[0]) == [2.0, 1.0]
    assert completion_returns(crossed, 1, returns[1]) == [20.0, 40.0]


def test_aligned_mode_has_one_joint_action_per_completion() -> None:
    one = aligned(0, 0.1, 0.7, 4.0)
    assert completion_returns(one, 1, [0.1, 0.7, 4.0]) == [0.1, 0.7, 4.0]


def test_every_completion_of_three_agents_is_credited() -> None:
    crossed = node(0, 3, 3, "cross", [[float(i)] * 3 for i in range(27)])
    returns = action_returns(crossed, 2, 1.0, full_tree=True)
    assert completion_returns(crossed, 0, returns) == pytest.approx([4.0, 13.0, 22.0])
    assert completion_returns(crossed, 2, returns) == pytest.approx([12.0, 13.0, 14.0])
