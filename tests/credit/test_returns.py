"""Returns on trees: cases worked by hand."""

from __future__ import annotations

import pytest

from marl_ray.core.episode import Node
from marl_ray.credit.returns import action_returns, completion_returns
from tests.credit.trees import node


def aligned(turn: int, *rewards: float) -> Node:
    return node(turn, len(rewards), 2, "aligned", [[r, r] for r in rewards])


def test_a_leaf_returns_its_reward() -> None:
    assert action_returns(aligned(0, 1.0, 3.0), 0, 0.5, whole=True) == [1.0, 3.0]


def test_a_whole_tree_adds_the_discounted_mean_of_the_children() -> None:
    root = aligned(0, 1.0, 2.0)
    root.children = {0: aligned(1, 4.0, 0.0), 1: aligned(1, 1.0, 2.0)}
    assert action_returns(root, 0, 0.5, whole=True) == [1.0 + 0.5 * 2.0, 2.0 + 0.5 * 1.5]
    root.children[0].children = {0: aligned(2, 8.0, 8.0), 1: aligned(2, 0.0, 4.0)}
    # The child's returns: 4 + 0.5 * 8 = 8 and 0 + 0.5 * 2 = 1.
    assert action_returns(root, 1, 0.5, whole=True) == [1.0 + 0.5 * 4.5, 2.0 + 0.5 * 1.5]


def test_a_chain_cannot_rank_siblings_by_what_follows_one_of_them() -> None:
    root = aligned(0, 1.0, 2.0)
    root.children = {1: aligned(1, 4.0, 4.0)}
    assert action_returns(root, 0, 1.0, whole=False) == [1.0, 2.0]


def test_nor_can_a_tree_one_of_whose_branches_was_lost() -> None:
    root = aligned(0, 1.0, 2.0)
    root.children, root.transitions = {1: aligned(1, 4.0, 4.0)}, {0: {}, 1: {}}
    assert action_returns(root, 0, 1.0, whole=True) == [1.0, 2.0]


def test_what_was_lost_further_down_says_nothing_of_those_above() -> None:
    """Both branches are equally good, but a grandchild of one was lost: it must not look like the worse one."""
    root = aligned(0, 1.0, 1.0)
    root.children = {g: aligned(1, 4.0, 4.0) for g in (0, 1)}
    root.transitions = {0: {}, 1: {}}
    for child in root.children.values():
        child.children, child.transitions = {g: aligned(2, 4.0, 4.0) for g in (0, 1)}, {0: {}, 1: {}}
    assert action_returns(root, 0, 1.0, whole=True) == [9.0, 9.0]
    del root.children[0].children[1]
    assert action_returns(root, 0, 1.0, whole=True) == [1.0, 1.0]
    assert action_returns(root.children[0], 0, 1.0, whole=True) == [4.0, 4.0]
    assert action_returns(root.children[1], 0, 1.0, whole=True) == [8.0, 8.0]


def test_an_early_end_is_no_loss() -> None:
    root = aligned(0, 1.0, 1.0)
    root.children, root.transitions = {g: aligned(1, 4.0, 4.0) for g in (0, 1)}, {0: {}, 1: {}}
    assert action_returns(root, 0, 0.5, whole=True) == [3.0, 3.0]


def test_a_group_of_one_in_a_chain_has_its_own_reward() -> None:
    root = aligned(0, 1.0)
    root.children = {0: aligned(1, 4.0)}
    assert action_returns(root, 0, 1.0, whole=False) == [1.0]
    assert action_returns(root, 0, 1.0, whole=True) == [5.0]


def test_cross_credits_a_completion_with_the_mean_of_what_holds_it() -> None:
    # Joint actions in order (0, 0), (0, 1), (1, 0), (1, 1).
    crossed = node(0, 2, 2, "cross", [[0.0, 10.0], [4.0, 20.0], [1.0, 30.0], [1.0, 60.0]])
    returns = [action_returns(crossed, agent, 1.0, whole=True) for agent in (0, 1)]
    assert completion_returns(crossed, 0, returns[0]) == [2.0, 1.0]
    assert completion_returns(crossed, 1, returns[1]) == [20.0, 40.0]


def test_aligned_is_the_case_of_one_joint_action_each() -> None:
    one = aligned(0, 0.1, 0.7, 4.0)
    assert completion_returns(one, 1, [0.1, 0.7, 4.0]) == [0.1, 0.7, 4.0]


def test_every_completion_is_credited() -> None:
    crossed = node(0, 3, 3, "cross", [[float(i)] * 3 for i in range(27)])
    returns = action_returns(crossed, 2, 1.0, whole=True)
    assert completion_returns(crossed, 0, returns) == pytest.approx([4.0, 13.0, 22.0])
    assert completion_returns(crossed, 2, returns) == pytest.approx([12.0, 13.0, 14.0])
